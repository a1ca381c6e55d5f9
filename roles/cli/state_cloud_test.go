package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/store"
)

// On a node of a cloud the state has the NIC of each address, and the cloud's addresses
// by subnet.
func TestStateOfCloud(t *testing.T) {
	dir := t.TempDir()
	open := func(ctx context.Context, role string) (*roles.Host, func(), error) {
		return node.Open(ctx, node.Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "lib"), Role: role, Program: "test"})
	}
	const mac = "00:0d:3a:51:c4:90"
	then := time.Now().Add(-3 * time.Hour)
	owner := store.Key{Network: "azure", ContainerID: "c1", IfName: "eth0"}
	address, gone := netip.MustParseAddr("10.240.0.36"), netip.MustParseAddr("10.240.0.99")
	h, done, err := open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	err = h.Store.Update(t.Context(), func(tx *store.Tx) error {
		err := tx.PutCloudSource(&store.CloudSource{
			Name: "azure http://168.63.129.16", Fetched: then, Withdrawn: map[netip.Addr]time.Time{gone: then},
			NICs: []store.CloudNIC{{MAC: mac, Subnets: []store.CloudSubnet{
				{
					Prefix: netip.MustParsePrefix("10.240.0.0/16"), Gateway: netip.MustParseAddr("10.240.0.1"),
					Addresses: []netip.Addr{address, address.Next()}, Ranges: []netip.Prefix{netip.MustParsePrefix("10.240.8.0/28")},
				},
				{Prefix: netip.MustParsePrefix("fd00::/64"), Ranges: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}},
			}}},
		})
		if err != nil {
			return err
		}
		p, err := tx.Pool(store.PoolID{DataDir: store.CloudDataDir, Network: "azure"})
		for _, a := range []netip.Addr{address, gone} {
			if err == nil {
				err = p.Reserve(store.Lease{Address: a, Owner: owner, Time: then, Source: "azure http://168.63.129.16", NIC: mac})
			}
		}
		return err
	})
	done()
	if err != nil {
		t.Fatal(err)
	}
	state := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		p := Process{Table: roles.Table{}, Args: append([]string{"state"}, args...), Stdout: &out, Stderr: &errs, OpenHost: open}
		if code := Main(t.Context(), p); code != ExitOK {
			t.Fatalf("exit code %d: %s", code, &errs)
		}
		return out.String()
	}
	text := state()
	for _, want := range []string{
		"10.240.0.36\tazure\tc1\teth0\t0\t3h\tcloud " + mac,
		"SUBNET\tNIC\tLINK\tGATEWAY\tADDRESSES\tUSED\tWITHDRAWN\tSOURCE\tAGE",
		"10.240.0.0/16\t" + mac + "\t-\t10.240.0.1\t18\t2\t1\tazure http://168.63.129.16\t3h",
		"fd00::/64\t" + mac + "\t-\t-\t2^64\t0\t0\tazure http://168.63.129.16\t3h",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q in:\n%s", want, text)
		}
	}
	var got struct{ Cloud []inventory.CloudPool }
	if err := json.Unmarshal([]byte(state("--json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Cloud) != 2 || got.Cloud[0].Used != 2 || got.Cloud[0].Addresses != "18" || !got.Cloud[0].Fetched.Equal(then) {
		t.Errorf("JSON has %+v", got.Cloud)
	}
}
