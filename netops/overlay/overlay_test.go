package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// The MACs of both nodes. The tests configure the other node with the commands
// that flannel uses.
const (
	ownMAC   = "02:00:00:00:01:01"
	otherMAC = "02:00:00:00:02:02"
)

// overlayNet is one address family of two nodes on one link: the test's own
// namespace and the neighbour.
type overlayNet struct {
	is6                       bool
	device                    string
	own, other                string // addresses on the link
	ownSubnet, otherSubnet    string
	ownPod, otherPod, network string
}

func net4() overlayNet {
	return overlayNet{
		device: "flannel.1", own: "192.168.50.1", other: "192.168.50.2",
		ownSubnet: "10.244.1.0/24", otherSubnet: "10.244.2.0/24",
		ownPod: "10.244.1.5", otherPod: "10.244.2.5", network: "10.244.0.0/16",
	}
}

func net6() overlayNet {
	return overlayNet{
		is6: true, device: "flannel-v6.1", own: "fd50::1", other: "fd50::2",
		ownSubnet: "fd44:1::/64", otherSubnet: "fd44:2::/64",
		ownPod: "fd44:1::5", otherPod: "fd44:2::5", network: "fd44::/16",
	}
}

func (n *overlayNet) bits() string {
	if n.is6 {
		return "/128"
	}
	return "/32"
}

func (n *overlayNet) linkBits() string {
	if n.is6 {
		return "/64"
	}
	return "/24"
}

func first(subnet string) string { return netip.MustParsePrefix(subnet).Addr().String() }

func (n *overlayNet) vtep() *VTEP {
	mtu := 1450
	if n.is6 {
		mtu = 1430
	}
	return &VTEP{
		Name: n.device, VNI: 1, Port: 8472, Parent: "under0", Local: netip.MustParseAddr(n.own), MAC: ownMAC, MTU: mtu,
		Address: netip.MustParsePrefix(first(n.ownSubnet) + n.bits()), Network: netip.MustParsePrefix(n.network),
	}
}

func (n *overlayNet) peer() Peer {
	return Peer{Name: "other", Subnet: netip.MustParsePrefix(n.otherSubnet), Gateway: netip.MustParseAddr(n.other), MAC: MAC{2, 0, 0, 0, 2, 2}}
}

func (n *overlayNet) spec() Spec {
	return Spec{Device: n.vtep(), Peers: []Peer{n.peer()}, Prune: true}
}

// makeNodes links the two nodes, makes the other node's tunnel, and makes a pod
// on each node.
func makeNodes(t *testing.T, n overlayNet) *nstest.Neighbour {
	t.Helper()
	other := nstest.NewNeighbour(t)
	nstest.Run(t, "ip", "link", "add", "under0", "type", "veth", "peer", "name", "under0", "netns", fmt.Sprint(other.PID))
	t.Cleanup(func() { nstest.TryIP("link del under0") })
	nstest.IP(t, "addr add "+n.own+n.linkBits()+" dev under0 "+nodad(n))
	nstest.IP(t, "link set under0 up")
	nstest.IP(t, "addr add "+n.ownPod+n.bits()+" dev lo "+nodad(n))
	t.Cleanup(func() { nstest.TryIP("addr del " + n.ownPod + n.bits() + " dev lo") })
	other.IP(t, "link set lo up")
	other.IP(t, "addr add "+n.other+n.linkBits()+" dev under0 "+nodad(n))
	other.IP(t, "link set under0 up")
	makeFlannel(t, other, n)
	other.IP(t, "addr add "+n.otherPod+n.bits()+" dev lo "+nodad(n))
	return other
}

func nodad(n overlayNet) string {
	if n.is6 {
		return "nodad"
	}
	return ""
}

// makeFlannel makes the neighbour's tunnel in the same way as flannel.
func makeFlannel(t *testing.T, other *nstest.Neighbour, n overlayNet) {
	t.Helper()
	other.IP(t, "link add "+n.device+" address "+otherMAC+" type vxlan id 1 dev under0 local "+n.other+" dstport 8472 nolearning")
	other.IP(t, "addr add "+first(n.otherSubnet)+n.bits()+" dev "+n.device+" "+nodad(n))
	other.IP(t, "link set "+n.device+" up")
	other.IP(t, "neigh replace "+first(n.ownSubnet)+" lladdr "+ownMAC+" dev "+n.device+" nud permanent")
	nstest.Run(t, "nsenter", "-t", fmt.Sprint(other.PID), "-n", "bridge", "fdb", "append", ownMAC, "dev", n.device, "dst", n.own, "self", "permanent")
	other.IP(t, "route replace "+n.ownSubnet+" via "+first(n.ownSubnet)+" dev "+n.device+" onlink")
}

// openOverlay opens an overlay that is removed when the test ends.
func openOverlay(t *testing.T, n overlayNet, opt Options) *Kernel {
	t.Helper()
	opt.IPv6 = n.is6
	o, err := Open(netops.New(netops.Options{}), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func apply(t *testing.T, o *Kernel, spec Spec) Report {
	t.Helper()
	r, err := o.Apply(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range r.Warnings {
		t.Error(w)
	}
	return r
}

// echo answers datagrams in the neighbour's pod.
func echo(t *testing.T, other *nstest.Neighbour, n overlayNet) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(n.otherPod), 7000)
	conn := nstest.UDP(t, other, at.String())
	if err := conn.SetDeadline(time.Time{}); err != nil { // it answers until the test ends
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 2000)
		for {
			k, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:k], from)
		}
	}()
	return at
}

// reach sends datagrams from the own pod to the other pod until an answer
// arrives.
func reach(t *testing.T, n overlayNet, at netip.AddrPort) bool {
	t.Helper()
	conn := nstest.UDP(t, nil, netip.AddrPortFrom(netip.MustParseAddr(n.ownPod), 0).String())
	defer conn.Close()
	buf := make([]byte, 100)
	for late := await.Deadline(); time.Now().Before(late); {
		_, _ = conn.WriteToUDPAddrPort([]byte("pod"), at)
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, _, err := conn.ReadFromUDPAddrPort(buf); err == nil {
			return true
		}
	}
	return false
}

// TestOverlay connects two nodes and checks that their pods reach each other.
func TestOverlay(t *testing.T) {
	for _, c := range []struct {
		name    string
		net     overlayNet
		classic bool
	}{{"IPv4", net4(), false}, {"IPv6", net6(), false}, {"IPv4 without nexthops", net4(), true}, {"IPv6 without nexthops", net6(), true}} {
		t.Run(c.name, func(t *testing.T) {
			other := makeNodes(t, c.net)
			at := echo(t, other, c.net)
			o := openOverlay(t, c.net, Options{NoNexthops: c.classic})
			r := apply(t, o, c.net.spec())
			if r.Programmed != 1 || r.MAC != ownMAC || !r.Dumped {
				t.Errorf("report %+v, peers %+v", r, o.Peers(t.Context()))
			}
			if !reach(t, c.net, at) {
				t.Fatalf("no answer from the other pod\n%s", nstest.IP(t, "-d addr"))
			}
			if r := apply(t, o, c.net.spec()); r.Writes != 0 || r.Dumped {
				t.Errorf("again: %+v", r)
			}
			select {
			case <-o.Changes():
				t.Errorf("own changes are reported as a disturbance")
			case <-time.After(200 * time.Millisecond):
			}
			spec := c.net.spec()
			spec.Peers = nil
			if r := apply(t, o, spec); r.Writes == 0 {
				t.Errorf("the peer went without a write: %+v", r)
			}
			if left := nstest.IP(t, "route show proto 142") + nstest.IP(t, "-6 route show proto 142") + nstest.IP(t, "nexthop"); left != "" {
				t.Errorf("left: %s", left)
			}
		})
	}
}
