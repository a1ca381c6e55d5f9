package dhcp_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: many containers at once, and calls killed at random. Each address is leased
// once, and none stays leased. One lease does not wait for another.
func TestStorm(t *testing.T) {
	wire := newWire(t)
	dnsmasq(t, wire.server, "10", "--dhcp-lease-max=2000")
	e := rolestest.NewEnv(t, all.Table())
	d := daemonAt(t, e, "/run/cni/dhcp.sock")
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 32, Parallel: 8,
		Confs: []string{`{"cniVersion":"1.1.0","name":"lan","type":"bridge","bridge":"br0","ipam":{"type":"dhcp","families":["ipv4","ipv6"]}}`},
	}.Run(t)
	if n := recorded(t, e); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if s := d.said(); strings.Contains(s, "level=ERROR") {
		t.Errorf("daemon:\n%s", s)
	}
}
