package dhcp_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestIPv6: issues #720, #552 and #485.
func TestIPv6(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-6", fmt.Sprintf(isc6, ""))
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, `,"families":["ipv6"]`)
	a := e.OK(call("ADD", ns, c))
	r := result(t, a)
	if ip := r.IPs[0].Address.String(); !strings.HasPrefix(ip, "fd09::1") || !strings.HasSuffix(ip, "/128") {
		t.Errorf("result %s", a.Stdout)
	}
	if fmt.Sprint(r.DNS.Nameservers, r.DNS.Search) != "[fd09::1] [example.org]" {
		t.Errorf("dns %+v", r.DNS)
	}
	if s := ns.Snapshot(t); !strings.Contains(s, "address "+r.IPs[0].Address.String()) {
		t.Errorf("container:\n%s", s)
	}
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("DEL", ns, c))
	server.await(t, "Release message", 1)
	again := result(t, e.OK(call("ADD", ns, c)))
	if again.IPs[0].Address.String() != r.IPs[0].Address.String() {
		t.Errorf("the same container has %v, before %v", again.IPs[0].Address, r.IPs[0].Address)
	}
	e.OK(call("DEL", ns, c))
}

// TestDualStack leases addresses of dnsmasq, an implementation other than isc-dhcp-server.
func TestDualStack(t *testing.T) {
	wire := newWire(t)
	server := dnsmasq(t, wire.server, "100", "--dhcp-option=option:dns-server,10.9.0.1", "--dhcp-option=option6:dns-server,[fd09::1]")
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, `,"families":["ipv4","ipv6"]`)
	a := e.OK(call("ADD", ns, c))
	r := result(t, a)
	if len(r.IPs) != 2 || !strings.HasPrefix(r.IPs[0].Address.String(), "10.9.0.") || !strings.HasPrefix(r.IPs[1].Address.String(), "fd09::") {
		t.Errorf("result %s", a.Stdout)
	}
	if got := fmt.Sprint(r.DNS.Nameservers); got != "[10.9.0.1 fd09::1]" {
		t.Errorf("name servers %s", got)
	}
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE(eth0)", 2)
}
