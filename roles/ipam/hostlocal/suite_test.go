package hostlocal

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// TestSuite runs the role as a process, as a third-party interface plugin does.
func TestSuite(t *testing.T) {
	tamper := []rolestest.Tamper{{Name: "lease gone", Do: dropLeases}, {Name: "file gone", Do: dropFile}}
	rolestest.Suite{
		Whole: true, Table: tabletest.Of(Role()), Type: "host-local",
		Confs: []rolestest.Conf{
			{Name: "one", Tamper: tamper, JSON: `{"name": "net", "type": "bridge", "ipam": {"type": "host-local", "dataDir": "/run/networks", "subnet": "10.1.2.0/24"}}`},
			{Name: "dual stack", Tamper: tamper, JSON: `{"name": "net", "type": "bridge", "ipam": {"type": "host-local", "dataDir": "/run/networks",
				"ranges": [[{"subnet": "10.1.2.0/24", "exclude": ["10.1.2.3"]}], [{"subnet": "2001:db8::/64"}]],
				"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`},
			{Name: "sticky", Tamper: tamper, JSON: `{"name": "net", "type": "bridge", "ipam": {"type": "host-local", "dataDir": "/run/networks",
				"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]], "sticky": {}}}`},
		},
	}.Run(t)
}

func dropFile(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
	t.Helper()
	if err := os.Remove(filepath.Join("/run/networks/net", r.IPs[0].Address.IP.String())); err != nil {
		t.Fatal(err)
	}
}

func dropLeases(t *testing.T, e *rolestest.Env, _ *netopstest.NS, _ *roles.Result) {
	t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test", Reference: migrate.ReferencePlugins{}})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	err = h.Store.Update(context.Background(), func(tx *store.Tx) error {
		gone, err := tx.DeleteLeases(store.Key{Network: "net", ContainerID: "c1", IfName: "eth0"})
		if err == nil && len(gone) == 0 {
			t.Error("there was no lease")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
