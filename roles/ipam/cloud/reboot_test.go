package cloud

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// reboot removes everything that ends with the boot.
func (b *bed) reboot() {
	b.Store = store.New(store.Options{
		RunDir: filepath.Join(b.dir, "run"), StateDir: filepath.Join(b.dir, "state"),
		BootID: "0d5b5d2f-52a1-4f2c-9b64-5c3e1d6a6a02", LockTimeout: time.Minute, Now: b.Now,
	})
}

// TestReboot: after a reboot there are no leases and cool-downs. The cloud's addresses
// and the reservations of sticky addresses are still known, although the cloud does not
// answer yet.
func TestReboot(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37", "10.240.0.38"))
	plain, stuck := b.handlerFor(t, ""), b.handlerFor(t, `"sticky": {"ttl": "1h"}`)
	pod := func(id string) *roles.Request {
		return withArgs(t, request(id), "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web")
	}
	expect(t, b.add(t, plain, request("a")), "10.240.0.36")
	expect(t, b.add(t, stuck, pod("b")), "10.240.0.37")
	if err := os.Remove(filepath.Join(b.dir, "nics.json")); err != nil {
		t.Fatal(err)
	}
	b.reboot()
	b.pass(time.Minute)
	if err := plain.Status(context.Background(), b.Host, request("")); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	expect(t, b.leases(t), "")
	expect(t, b.add(t, stuck, pod("c")), "10.240.0.37")
	expect(t, b.add(t, plain, request("d")), "10.240.0.36")
	locations, err := attachment.CloudLocations(context.Background(), b.Host, request("d").Key())
	if err != nil || len(locations) != 1 || locations[0].NIC.MAC != macA || !locations[0].Subnet.Gateway.IsValid() {
		t.Errorf("locations %+v, %v", locations, err)
	}
}

// TestHomeBeforeTheCloudAnswers: until the cloud answers in this boot, its last reply
// from the previous boot determines the NIC of an address.
func TestHomeBeforeTheCloudAnswers(t *testing.T) {
	b := newBed(t)
	b.gives(t, nic(macA, true, "10.240.0.0/16", "10.240.0.36"))
	a := b.handlerFor(t, "")
	b.add(t, a, request("a"))
	b.reboot()
	err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
		pool, err := tx.Pool(store.PoolID{Network: "net", DataDir: store.CloudDataDir})
		if err != nil {
			return err
		}
		return pool.Reserve(store.Lease{Address: addrs("10.240.0.36")[0], Owner: request("b").Key(), Source: a.feed.Source(), NIC: macA})
	})
	if err != nil {
		t.Fatal(err)
	}
	locations, err := attachment.CloudLocations(context.Background(), b.Host, request("b").Key())
	if err != nil || len(locations) != 1 || locations[0].Subnet.Prefix.String() != "10.240.0.0/16" {
		t.Errorf("locations %+v, %v", locations, err)
	}
}

// TestUnknownCloud: if the cloud does not answer and never did, ADD's error makes the
// runtime try again. DEL, CHECK and GC send no request.
func TestUnknownCloud(t *testing.T) {
	b := newBed(t)
	err := b.addFails(t, b.handlerFor(t, ""), request("a"))
	if !errors.Is(err, roles.ErrTryAgain) {
		t.Error(err)
	}
	f := newFabric(t, 1)
	f.does(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	e := rolestest.NewEnv(t, tabletest.Of(Role()))
	conf := `{"cniVersion": "1.1.0", "name": "azure", "type": "azure-vnet", "cni.dev/valid-attachments": [], "ipam": {"type": "azure-vnet-ipam", "url": "` + f.URL + `", "queryInterval": 1}}`
	call := rolestest.Call{Type: "azure-vnet-ipam", ID: "c", Netns: netopstest.New(t).Path(), IfName: "eth0", Conf: conf}
	call.Verb = "ADD"
	e.Fail(call, 11)
	if f.queries.Load() == 0 {
		t.Error("ADD sent no request")
	}
	f.queries.Store(0)
	call.Verb = "DEL"
	e.OK(call)
	call.Verb = "GC"
	e.OK(call)
	call.Verb = "CHECK"
	call.Conf = rolestest.WithKeys(t, conf, map[string]any{"prevResult": map[string]any{"cniVersion": "1.1.0"}})
	e.Fail(call, 0)
	if n := f.queries.Load(); n != 0 {
		t.Errorf("DEL, GC and CHECK sent %d requests", n)
	}
	call.Verb, call.Conf = "STATUS", conf
	e.Fail(call, 50)
}
