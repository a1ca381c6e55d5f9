package cloud

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// azureFile is interfaces.json of azure-vnet-ipam's environment fileIpam, with n addresses.
func azureFile(tb testing.TB, n int) string {
	tb.Helper()
	type address struct {
		Address   string
		IsPrimary bool
	}
	ips := []address{{"10.250.0.4", true}}
	for i := range n {
		ips = append(ips, address{Address: fmt.Sprintf("10.250.%d.%d", 1+i/200, 10+i%200)})
	}
	return writeFile(tb, map[string]any{"Interfaces": []any{map[string]any{
		"MacAddress": "*", "IsPrimary": true,
		"IPSubnets": []any{map[string]any{"Prefix": "10.250.0.0/16", "IPAddresses": ips}},
	}}})
}

func writeFile(tb testing.TB, v any) string {
	tb.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), "interfaces.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// TestSuite calls the role as a process, as a third-party interface plugin does.
func TestSuite(t *testing.T) {
	tamper := []rolestest.Tamper{{Name: "lease gone", Do: dropLeases}}
	host := func(tb testing.TB) { tb.Helper(); makeNICs(tb) }
	single := nic(macB, false, "10.241.0.0/24", "10.241.0.64/26")
	dual := nic(macA, true, "10.240.0.0/16", "10.240.0.36", "10.240.0.37", "10.240.1.0/28")
	dual.Subnets = append(dual.Subnets, nic("", true, "2001:db8:1::/64", "2001:db8:1:0:aaaa::/80").Subnets...)
	conf := func(ipam, file string) string {
		return fmt.Sprintf(`{"name": "net", "type": "bridge", "ipam": {%s, "file": %q}}`, ipam, file)
	}
	rolestest.Suite{
		Table: tabletest.Of(Role()), Type: "azure-vnet-ipam",
		Confs: []rolestest.Conf{{Name: "fileIpam", Tamper: tamper, JSON: conf(`"type": "azure-vnet-ipam", "environment": "fileIpam"`, azureFile(t, 250))}},
	}.Run(t)
	rolestest.Suite{
		Table: tabletest.Of(Role()), Type: "cloud-ipam",
		Confs: []rolestest.Conf{
			{Name: "dual stack", Tamper: tamper, Host: host, JSON: conf(`"type": "cloud-ipam", "provider": "file", "family": "dual", "cooldown": 0`, writeFile(t, []store.CloudNIC{single, dual}))},
			{Name: "sticky", Tamper: tamper, Host: host, JSON: conf(`"type": "cloud-ipam", "provider": "file", "sticky": {}, "cooldown": 0`, writeFile(t, []store.CloudNIC{single, dual}))},
		},
	}.Run(t)
}

// TestStorm attaches and detaches many containers at once, a third of the processes killed.
func TestStorm(t *testing.T) {
	file := azureFile(t, 40)
	rolestest.Storm{
		Table: tabletest.Of(Role()), Type: "azure-vnet-ipam", Containers: 30, Parallel: 8,
		Confs: []string{fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "azure-vnet", "ipam": {"type": "azure-vnet-ipam", "environment": "fileIpam", "file": %q, "queryInterval": 1, "cooldown": 0}}`, file)},
	}.Run(t)
}

func dropLeases(t *testing.T, e *rolestest.Env, _ *netopstest.NS, _ *roles.Result) {
	t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test"})
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
