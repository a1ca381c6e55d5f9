package azurevnet_test

import (
	"net"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// at is a UDP socket at port 5000 of an address.
func at(t *testing.T, in netopstest.Place, addr string) *net.UDPConn {
	t.Helper()
	return netopstest.Listen(t, in, net.JoinHostPort(addr, "5000"))
}

// TestTraffic: containers, the node, and a machine of the VNet outside the node
// reach each other with their own addresses. The fabric accepts only frames
// with the node's MAC and does not answer ARP for the containers. In the mode
// tunnel packets between containers pass the fabric.
func TestTraffic(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		tunnel     bool
	}{
		{"bridge", bridge, false},
		{"tunnel", tunnel, true},
		{"transparent", transparent, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric(t)
			e := rolestest.NewEnv(t, all.Table())
			before := e.State([]string{"sysctl net/"})
			t.Run("attached", func(t *testing.T) {
				a, b := attach(t, e, c.conf, "a"), attach(t, e, c.conf, "b")
				atA, atB, atNode := at(t, a, a.addr), at(t, b, b.addr), at(t, nil, "10.240.0.4")
				there, dropped := f.forwarded(t), f.dropped(t)
				netopstest.CheckDatagram(t, "pod to pod", a, atB, a.addr)
				netopstest.CheckDatagram(t, "and back", b, atA, b.addr)
				if passed := f.forwarded(t) > there; passed != c.tunnel {
					t.Errorf("packets between pods of the node passed the fabric: %v, want %v", passed, c.tunnel)
				}
				netopstest.CheckDatagram(t, "pod to node", a, atNode, a.addr)
				netopstest.CheckDatagram(t, "node to pod", nil, atA, "10.240.0.4")
				netopstest.CheckDatagram(t, "pod to gateway", a, at(t, f, gateway), a.addr)
				netopstest.CheckDatagram(t, "pod to VNet", b, at(t, f, beyond), b.addr)
				netopstest.CheckDatagram(t, "pod to world", b, at(t, f, world), b.addr)
				netopstest.CheckDatagram(t, "VNet to pod", f, netopstest.Listen(t, a, net.JoinHostPort(a.addr, "5001")), gateway)
				netopstest.CheckDatagram(t, "node to VNet", nil, netopstest.Listen(t, f, net.JoinHostPort(beyond, "5001")), "10.240.0.4")
				if n := f.dropped(t) - dropped; n > 0 {
					t.Errorf("the fabric received %d frames with other MACs", n)
				}
			})
			collect(t, e, c.conf)
			if have := e.State([]string{"sysctl net/"}); have != before {
				t.Errorf("after DEL and GC:\n%s\nbefore:\n%s", have, before)
			}
		})
	}
}
