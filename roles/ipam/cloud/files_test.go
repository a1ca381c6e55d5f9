package cloud

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
)

// TestAzureFile: azure-vnet-ipam.json has the container of every address after each ADD,
// DEL and GC, also failed ones. cloud-ipam writes the file only if it is configured.
func TestAzureFile(t *testing.T) {
	b := newBed(t)
	path := filepath.Join(b.Store.RunDir(), string(azureview.Addresses))
	b.gives(t, nic(macB, false, "10.241.0.0/24", "10.241.0.64/31"))
	if _, err := b.handlerFor(t, "").Add(context.Background(), b.Host, request("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("cloud-ipam wrote %s: %v", path, err)
	}
	a := b.handlerFor(t, "", `"stateFiles": true`)
	used := func(want ...string) {
		t.Helper()
		var file struct {
			IPAM struct {
				AddressSpaces map[string]struct {
					Pools map[string]struct {
						IfName    string
						Addresses map[string]struct {
							ID    string
							InUse bool
						}
					}
				}
			}
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(raw, &file)
		}
		if err != nil {
			t.Fatal(err)
		}
		p := file.IPAM.AddressSpaces["local"].Pools["10.241.0.0/24"]
		var got []string
		for _, x := range p.Addresses {
			if x.InUse {
				got = append(got, x.ID)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || p.IfName != "nicB" || len(p.Addresses) != 2 {
			t.Errorf("in use %q of %+v, want %q", got, p, want)
		}
	}
	add := func(id string) error { _, err := a.Add(context.Background(), b.Host, request(id)); return err }
	if err := add("b"); err != nil {
		t.Fatal(err)
	}
	used("a", "b")
	if add("c") == nil {
		t.Error("there is a third address")
	}
	used("a", "b")
	if err := a.Del(context.Background(), b.Host, request("a")); err != nil {
		t.Fatal(err)
	}
	used("b")
	gc := request("")
	gc.Verb, gc.Valid = roles.GC, []roles.AttachmentID{}
	if err := a.GC(context.Background(), b.Host, gc); err != nil {
		t.Fatal(err)
	}
	used()
	if _, err := newHandler([]byte(`{"name": "net", "stateDir": "run", "ipam": {"type": "azure-vnet-ipam"}}`)); err == nil {
		t.Error("a relative stateDir is taken")
	}
}
