package dhcp_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestPod: issue #181: the containers of one pod are one client. The address is not released while
// one of them exists.
func TestPod(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	c := conf(e, "")
	pod := func(verb, id, name string, ns *netopstest.NS) rolestest.Call {
		c := call(verb, ns, c)
		c.ID, c.Args = id, "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+name
		return c
	}
	one, two := netopstest.New(t), netopstest.New(t)
	other := result(t, e.OK(pod("ADD", "c0", "web-1", netopstest.New(t))))
	a := result(t, e.OK(pod("ADD", "c1", "web-0", one)))
	b := result(t, e.OK(pod("ADD", "c2", "web-0", two)))
	if a.IPs[0].Address.String() != b.IPs[0].Address.String() || a.IPs[0].Address.String() == other.IPs[0].Address.String() {
		t.Errorf("addresses %v, %v, of another pod %v", a.IPs[0].Address, b.IPs[0].Address, other.IPs[0].Address)
	}
	e.OK(pod("DEL", "c1", "web-0", one))
	d.await(t, "not released", 1)
	e.OK(pod("DEL", "c2", "web-0", two))
	server.await(t, "DHCPRELEASE of "+a.IPs[0].Address.IP.String(), 1)
}

// TestPodFailed: a second container of a pod gets only some of its addresses. They are also the
// first container's, so they are not released.
func TestPodFailed(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e, "-timeout", "2s", "-resendtimeout", "8s")
	pod := func(verb, id, keys string, ns *netopstest.NS) rolestest.Call {
		c := call(verb, ns, conf(e, keys))
		c.ID, c.Args = id, "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
		return c
	}
	ns := netopstest.New(t)
	r := result(t, e.OK(pod("ADD", "c1", "", ns)))
	e.Fail(pod("ADD", "c2", `,"families":["ipv4","ipv6"]`, netopstest.New(t)), 11)
	server.await(t, "DHCPACK on 10.9.0.10", 2) // the second container got the same address
	e.OK(pod("DEL", "c1", "", ns))
	server.await(t, "DHCPRELEASE of "+r.IPs[0].Address.IP.String(), 1)
	d.await(t, "msg=released", 1)
	if n := strings.Count(server.said(), "DHCPRELEASE"); n != 1 {
		t.Errorf("released %d times, want once", n)
	}
}
