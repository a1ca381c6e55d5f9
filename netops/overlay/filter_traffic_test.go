package overlay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// TestOverlayFilterTraffic sends packets through the rules. A pod's packets to
// the outside are masqueraded. They are not masqueraded to other pods, to an
// exception, or with kube-proxy's mark, because kube-proxy's rules masquerade
// them. Packets of outside clients are masqueraded only to remote pods; flannel's
// nftables rules never do that.
func TestOverlayFilterTraffic(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			pod, outside := nstest.NewNeighbour(t), nstest.NewNeighbour(t)
			node, far, except, remote, client := "192.0.2.1", "192.0.2.2", "198.51.100.2", n.otherPod, "203.0.113.9"
			if n.is6 {
				node, far, except, client = "2001:db8::1", "2001:db8::2", "2001:db8:1::2", "2001:db8:2::9"
			}
			for name, ns := range map[string]*nstest.Neighbour{"pod0": pod, "out0": outside} {
				nstest.IP(t, fmt.Sprintf("link add %s type veth peer name eth0 netns %d", name, ns.PID))
				nstest.IP(t, "link set "+name+" up")
				defer nstest.TryIP("link del " + name)
				ns.IP(t, "link set eth0 up")
				ns.IP(t, "link set lo up")
			}
			gateway := strings.TrimSuffix(n.ownPod, "5") + "1"
			for _, a := range []string{node + n.linkBits() + " dev out0", gateway + n.linkBits() + " dev pod0"} {
				nstest.IP(t, "addr add "+a+" "+nodad(n))
			}
			pod.IP(t, "addr add "+n.ownPod+n.linkBits()+" dev eth0 "+nodad(n))
			pod.IP(t, "addr add "+client+n.bits()+" dev lo "+nodad(n))
			pod.IP(t, "route add default via "+gateway)
			outside.IP(t, "addr add "+far+n.linkBits()+" dev eth0 "+nodad(n))
			for _, a := range []string{except, remote} {
				outside.IP(t, "addr add "+a+n.bits()+" dev lo "+nodad(n))
				nstest.IP(t, "route add "+a+" via "+far)
			}
			outside.IP(t, "route add default via "+node)
			nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
			defer nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
			f := openFilter(t)
			w := natOf(n)
			w.Exceptions = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(except), netip.MustParseAddr(except).BitLen())}
			ensureFilter(t, f, w)
			for _, c := range []struct{ what, from, to, want string }{
				{"pod to outside", n.ownPod, far, node},
				{"pod to an exception", n.ownPod, except, n.ownPod},
				{"pod to a remote pod", n.ownPod, remote, n.ownPod},
				{"client to a remote pod", client, remote, node},
				{"client to outside", client, far, client},
			} {
				if have := nstest.SeenSource(t, pod, c.from, nstest.UDP(t, outside, netip.AddrPortFrom(netip.MustParseAddr(c.to), 0).String())); have != c.want {
					t.Errorf("%s: seen as %s, wanted %s", c.what, have, c.want)
				}
			}
			// kube-proxy's mark, together with another bit.
			nstest.Run(t, "nft", "add", "table", "inet", "marks")
			defer nstest.Run(t, "nft", "delete", "table", "inet", "marks")
			nstest.Run(t, "nft", "add chain inet marks c { type filter hook prerouting priority -150; }")
			nstest.Run(t, "nft", "add rule inet marks c meta mark set 0x4001")
			if have := nstest.SeenSource(t, pod, n.ownPod, nstest.UDP(t, outside, netip.AddrPortFrom(netip.MustParseAddr(far), 0).String())); have != n.ownPod {
				t.Errorf("marked: seen as %s", have)
			}
		})
	}
}

// vxlanPacket returns a VXLAN packet without a valid frame in it (RFC 7348,
// section 5).
func vxlanPacket(vni uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	return append(b, make([]byte, 20)...)
}

// TestTunnelFilter checks that VXLAN packets of the VNI from unknown nodes are
// dropped, and that packets of other VNIs on the port are accepted.
func TestTunnelFilter(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			other := makeNodes(t, n)
			f := openFilter(t)
			w := natOf(n)
			w.Tunnel = &TunnelFilter{VNI: 5, Port: 4790}
			at := netip.AddrPortFrom(netip.MustParseAddr(n.own), 4790)
			sink := nstest.UDP(t, nil, at.String())
			from := nstest.UDP(t, other, netip.AddrPortFrom(netip.MustParseAddr(n.other), 0).String())
			arrives := func(vni uint32, what string) bool {
				t.Helper()
				// The second packet has another VNI, so it always arrives. It
				// arrives after the first one.
				for _, p := range [][]byte{append(vxlanPacket(vni), what...), append(vxlanPacket(9), "end"...)} {
					if _, err := from.WriteToUDPAddrPort(p, at); err != nil {
						t.Fatal(err)
					}
				}
				found, b := false, make([]byte, 100)
				for {
					_ = sink.SetReadDeadline(await.Deadline())
					k, _, err := sink.ReadFromUDPAddrPort(b)
					if err != nil {
						t.Fatal(err)
					}
					if strings.HasSuffix(string(b[:k]), "end") {
						return found
					}
					found = true
				}
			}
			if !arrives(5, "before") {
				t.Fatal("dropped without a rule")
			}
			ensureFilter(t, f, w)
			if arrives(5, "third-party") {
				t.Error("a packet of an unknown node came in")
			}
			w.Tunnel.Sources = []netip.Addr{netip.MustParseAddr(n.other)}
			ensureFilter(t, f, w)
			if !arrives(5, "node") {
				t.Error("a known node's packet was dropped")
			}
			w.Tunnel.Sources = nil
			ensureFilter(t, f, w)
			if arrives(5, "gone") {
				t.Error("a packet of a node that went came in")
			}
		})
	}
}

// TestOverlayForward checks that packets pass iptables' FORWARD chain with policy
// DROP, and that repeated calls add the rules once.
func TestOverlayForward(t *testing.T) {
	nstest.Run(t, "iptables-nft", "-P", "FORWARD", "DROP")
	defer nstest.Run(t, "nft", "delete", "table", "ip", "filter")
	f := openFilter(t)
	w := natOf(net4())
	w.Forward = true
	ensureFilter(t, f, w)
	ensureFilter(t, f, w)
	const want = `-P FORWARD DROP
-A FORWARD -s 10.244.0.0/16 -m comment --comment "cnibox overlay from 10.244.0.0/16" -j ACCEPT
-A FORWARD -d 10.244.0.0/16 -m comment --comment "cnibox overlay to 10.244.0.0/16" -j ACCEPT
`
	if have := nstest.Run(t, "iptables-nft", "-S", "FORWARD"); have != want {
		t.Errorf("rules:\n%s", have)
	}
	if err := f.Remove(context.Background()); err != nil {
		t.Error(err)
	}
	if have := nstest.Run(t, "iptables-nft", "-S", "FORWARD"); have != "-P FORWARD DROP\n" {
		t.Errorf("left:\n%s", have)
	}
}

// TestOverlayForwardLegacy does the same if iptables-legacy refuses. It checks
// that the family without a refusal stays unchanged.
func TestOverlayForwardLegacy(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{IPTables: nstest.IPTables})
	nstest.Run(t, "iptables-legacy", "-P", "FORWARD", "DROP")
	nstest.Run(t, "iptables-legacy", "-A", "FORWARD", "-s", "192.0.2.1", "-j", "ACCEPT")
	const before = "-P FORWARD DROP\n-A FORWARD -s 192.0.2.1/32 -j ACCEPT\n"
	f, err := OpenFilter(n)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w4, w6 := natOf(net4()), natOf(net6())
	w4.Forward, w6.Forward = true, true
	ensureFilter(t, f, w4, w6)
	ensureFilter(t, f, w4, w6)
	const want = `-P FORWARD DROP
-A FORWARD -s 10.244.0.0/16 -m comment --comment "cnibox overlay from 10.244.0.0/16" -j ACCEPT
-A FORWARD -d 10.244.0.0/16 -m comment --comment "cnibox overlay to 10.244.0.0/16" -j ACCEPT
-A FORWARD -s 192.0.2.1/32 -j ACCEPT
`
	if have := nstest.Run(t, "iptables-legacy", "-S", "FORWARD"); have != want {
		t.Errorf("rules:\n%s", have)
	}
	if rules := nstest.Run(t, "nft", "list", "ruleset"); strings.Contains(rules, "table ip filter") {
		t.Errorf("no rule refuses there:\n%s", rules)
	}
	if iptables.IsLegacyLoaded(unix.NFPROTO_IPV6, "filter") {
		t.Error("a legacy table for IPv6 was made")
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if have := nstest.Run(t, "iptables-legacy", "-S", "FORWARD"); have != before {
		t.Errorf("left:\n%s", have)
	}
}

// TestOverlayFilterManySources makes a table with 10,000 nodes and removes one.
func TestOverlayFilterManySources(t *testing.T) {
	f := openFilter(t)
	w := natOf(net4())
	w.Tunnel = &TunnelFilter{VNI: 1}
	for _, p := range manyPeers(10000, false) {
		w.Tunnel.Sources = append(w.Tunnel.Sources, p.Gateway)
	}
	start := time.Now()
	ensureFilter(t, f, w)
	t.Logf("made in %v", time.Since(start))
	start = time.Now()
	w.Tunnel.Sources = w.Tunnel.Sources[1:]
	ensureFilter(t, f, w)
	t.Logf("changed in %v", time.Since(start))
	count := strings.Count(nstest.Run(t, "nft", "list", "set", "inet", "cnibox_overlay", "vteps4"), ",") + 1
	if count != 9999 {
		t.Errorf("%d of 9999 elements", count)
	}
}
