package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// podScene has a pod, a node behind another link, and a node that is a virtual machine on this one.
type podScene struct {
	overlayNet
	pod, other, vm                      *nstest.Neighbour
	node, far, vmNode, third, elsewhere string
}

// newPodScene makes the links and addresses.
func newPodScene(t *testing.T, n overlayNet) *podScene {
	t.Helper()
	s := &podScene{
		overlayNet: n, pod: nstest.NewNeighbour(t), other: nstest.NewNeighbour(t), vm: nstest.NewNeighbour(t),
		node: "192.0.2.1", far: "192.0.2.2", vmNode: "198.51.100.2", third: "192.0.2.3", elsewhere: "203.0.113.9",
	}
	vmGateway := "198.51.100.1"
	if n.is6 {
		s.node, s.far, s.vmNode, s.third, s.elsewhere, vmGateway = "2001:db8::1", "2001:db8::2", "2001:db8:1::2", "2001:db8::3", "2001:db8:2::9", "2001:db8:1::1"
	}
	gateway := strings.TrimSuffix(n.ownPod, "5") + "1"
	for _, l := range []struct {
		name, gateway, address string
		ns                     *nstest.Neighbour
	}{{"pod0", gateway, n.ownPod, s.pod}, {"out0", s.node, s.far, s.other}, {"vm0", vmGateway, s.vmNode, s.vm}} {
		nstest.IP(t, fmt.Sprintf("link add %s type veth peer name eth0 netns %d", l.name, l.ns.PID))
		t.Cleanup(func() { nstest.TryIP("link del " + l.name) })
		nstest.IP(t, "addr add "+l.gateway+n.linkBits()+" dev "+l.name+" "+nodad(n))
		nstest.IP(t, "link set "+l.name+" up")
		l.ns.IP(t, "link set eth0 up")
		l.ns.IP(t, "link set lo up")
		l.ns.IP(t, "addr add "+l.address+n.linkBits()+" dev eth0 "+nodad(n))
		l.ns.IP(t, "route add default via "+l.gateway)
	}
	for _, a := range []string{s.third, s.elsewhere} { // which the pod forges
		s.pod.IP(t, "addr add "+a+n.bits()+" dev lo "+nodad(n))
	}
	s.other.IP(t, "addr add "+n.otherPod+n.bits()+" dev lo "+nodad(n))
	nstest.IP(t, "route add "+n.otherPod+" via "+s.far)
	nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.pod0.rp_filter=0")
	t.Cleanup(func() { nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0") })
	return s
}

const podTunnelPort = 4791

// arrives reports whether a VXLAN packet arrives. It would do before another one with a VNI of another program, whose source is end.
func (s *podScene) arrives(t *testing.T, from *nstest.Neighbour, source, end string, to *nstest.Neighbour, destination string) (found bool) {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(destination), podTunnelPort)
	sink := nstest.UDP(t, to, at.String())
	defer sink.Close() //nolint:errcheck // only read
	for _, p := range []struct {
		source string
		vni    uint32
		text   string
	}{{source, 5, "first"}, {end, 9, "end"}} {
		c := nstest.UDP(t, from, netip.AddrPortFrom(netip.MustParseAddr(p.source), 0).String())
		_, err := c.WriteToUDPAddrPort(append(vxlanPacket(p.vni), p.text...), at)
		_ = c.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	for b := make([]byte, 100); ; found = true {
		_ = sink.SetReadDeadline(await.Deadline())
		k, _, err := sink.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(string(b[:k]), "end") {
			return found
		}
	}
}

// TestTunnelFromPod: a pod sends no tunnelled packets to nodes, under its own address, which this node masquerades, or under that of a node.
// Nodes do, also through this one, and so do pods to pods, which may be nodes of another cluster.
func TestTunnelFromPod(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			s := newPodScene(t, n)
			f := openFilter(t)
			w := natOf(n)
			check := func(when string, open bool) {
				t.Helper()
				for _, c := range []struct {
					what        string
					from        *nstest.Neighbour
					source, end string
					to          *nstest.Neighbour
					destination string
					want        bool
				}{
					{"a pod to another node", s.pod, n.ownPod, n.ownPod, s.other, s.far, open},
					{"a pod as a node to another node", s.pod, s.third, n.ownPod, s.other, s.far, open},
					{"a pod as a node to this node", s.pod, s.third, n.ownPod, nil, s.node, open},
					{"a pod as somebody to another node", s.pod, s.elsewhere, n.ownPod, s.other, s.far, open},
					{"a virtual machine to another node", s.vm, s.vmNode, s.vmNode, s.other, s.far, true},
					{"another node to a virtual machine", s.other, s.far, s.far, s.vm, s.vmNode, true},
					{"another node to this node", s.other, s.far, s.far, nil, s.node, true},
					{"a pod to another pod", s.pod, n.ownPod, n.ownPod, s.other, n.otherPod, true},
				} {
					if have := s.arrives(t, c.from, c.source, c.end, c.to, c.destination); have != c.want {
						t.Errorf("%s: %s: arrives %v", when, c.what, have)
					}
				}
			}
			ensureFilter(t, f, w)
			check("without a tunnel", true)
			w.Tunnel = &TunnelFilter{Port: podTunnelPort, VNI: 5}
			for _, a := range []string{s.far, s.vmNode, s.third} {
				w.Tunnel.Sources = append(w.Tunnel.Sources, netip.MustParseAddr(a))
			}
			ensureFilter(t, f, w)
			check("with a tunnel", false)
			if n.is6 { // the kernel itself drops it for IPv4
				s.pod.IP(t, "addr add "+s.node+n.bits()+" dev lo nodad")
				if s.arrives(t, s.pod, s.node, n.ownPod, s.other, s.far) {
					t.Error("a pod as this node to another node: arrives")
				}
			}
		})
	}
}

// TestWireGuardFromPod: a pod sends nothing to the port of WireGuard of a node.
func TestWireGuardFromPod(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			s := newPodScene(t, n)
			f := openFilter(t)
			w := natOf(n)
			w.Encrypted, w.Tunnel = "wg0", &TunnelFilter{Port: podTunnelPort, Sources: []netip.Addr{netip.MustParseAddr(s.far)}}
			for _, open := range []bool{true, false} {
				for destination, to := range map[string]*nstest.Neighbour{s.far: s.other, s.node: nil} {
					at := netip.AddrPortFrom(netip.MustParseAddr(destination), podTunnelPort)
					sink, end := nstest.UDP(t, to, at.String()), nstest.UDP(t, to, netip.AddrPortFrom(at.Addr(), podTunnelPort+1).String())
					c := nstest.UDP(t, s.pod, netip.AddrPortFrom(netip.MustParseAddr(n.ownPod), 0).String())
					for _, to := range []*net.UDPConn{sink, end} {
						if _, err := c.WriteTo([]byte("x"), to.LocalAddr()); err != nil {
							t.Fatal(err)
						}
					}
					b := make([]byte, 10)
					if _, _, err := end.ReadFrom(b); err != nil {
						t.Fatal(err)
					}
					if k := queued(t, sink); k != open {
						t.Errorf("to %s: arrived %v, wanted %v", destination, k, open)
					}
					_, _, _ = sink.Close(), end.Close(), c.Close()
				}
				ensureFilter(t, f, w)
			}
		})
	}
}

// queued reports whether a datagram has arrived at a socket.
func queued(t *testing.T, c *net.UDPConn) (is bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
			is = err == nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return is
}
