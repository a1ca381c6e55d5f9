package dhcp_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// TestLease covers the reference's scenarios "ADD/DEL", "double DEL" and issues #1278/#1279: the
// server accepts the release.
func TestLease(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, "")
	added := result(t, e.OK(call("ADD", ns, c)))
	if got := added.IPs[0].Address.String(); got != "10.9.0.10/24" || added.IPs[0].Gateway.String() != "10.9.0.1" {
		t.Errorf("result %+v", added.IPs[0])
	}
	if s := ns.Snapshot(t); !strings.Contains(s, "address 10.9.0.10/24 dev eth0") || !strings.Contains(s, "route 0.0.0.0/0 via 10.9.0.1 dev eth0") {
		t.Errorf("container:\n%s", s)
	}
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
	e.OK(call("DEL", ns, c))
	if s := server.said(); strings.Count(s, "DHCPRELEASE") != 1 || !strings.Contains(s, "(found)") {
		t.Errorf("server:\n%s", s)
	}
	server.awaitFree(t, "10.9.0.10")
}

// result decodes an answer.
func result(t testing.TB, a rolestest.Answer) *roles.Result {
	t.Helper()
	var r roles.Result
	must(t, json.Unmarshal([]byte(a.Stdout), &r))
	return &r
}

// awaitFree waits until an address is free in the server's lease file.
func (s *iscServer) awaitFree(t testing.TB, addr string) {
	t.Helper()
	await.Until(t, func() bool { return s.state(t, addr) == "free" }, func() string {
		return fmt.Sprintf("lease is %q in the server's file", s.state(t, addr))
	})
}

// state returns the last binding state of an address in the server's lease file.
func (s *iscServer) state(t testing.TB, addr string) string {
	t.Helper()
	b, err := os.ReadFile(s.leases)
	must(t, err)
	_, last, ok := strings.Cut(string(b), "lease "+addr+" {")
	for ok {
		var next string
		if _, next, ok = strings.Cut(last, "lease "+addr+" {"); ok {
			last = next
		}
	}
	_, state, _ := strings.Cut(last, "binding state ")
	state, _, _ = strings.Cut(state, ";")
	return state
}
