package netops

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

const wantEgress = `table inet cnibox {
	set egress_near4 {
		type ifname . ipv4_addr
		flags interval
		elements = { "cni0" . 10.1.0.0/16 comment "net" }
	}

	set egress_near6 {
		type ifname . ipv6_addr
		flags interval
	}

	map egress4 {
		type ifname . ipv4_addr : ipv4_addr
		elements = { "cni0" . 10.1.0.2 comment "pod" : 192.0.2.7 }
	}

	map egress6 {
		type ifname . ipv6_addr : ipv6_addr
	}

	chain egress_postrouting {
		type nat hook postrouting priority srcnat - 1; policy accept;
		ip daddr 224.0.0.0/4 return
		iifname . ip daddr @egress_near4 return
		snat ip to iifname . ip saddr map @egress4
		ip6 daddr ff00::/8 return
		iifname . ip6 daddr @egress_near6 return
		snat ip6 to iifname . ip6 saddr map @egress6
	}
}
`

func TestNFTEgressAsNftShowsIt(t *testing.T) {
	c := freshNFT(t)
	mustAdd(t, c,
		&nft.Element{Shared: true, Set: "egress_near4", Key: []string{"cni0", "10.1.0.0/16"}, Label: "net"},
		&nft.Element{Set: "egress4", Key: []string{"cni0", "10.1.0.2"}, Value: []string{"192.0.2.7"}, Label: "pod"},
	)
	if diff := cmp.Diff(wantEgress, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("nft list ruleset (-want +got):\n%s", diff)
	}
}

// TestNFTEgressTranslatesRealTraffic: packets of a pod with an element leave with its address, also where the
// masquerading of the network and of another program would translate them, which came first. Those to its
// own subnet, and those of an address without an element, do not.
func TestNFTEgressTranslatesRealTraffic(t *testing.T) {
	c := freshNFT(t)
	pod, outside, near := masqueradeNet(t)
	pod.IP(t, "addr add 10.1.0.3/24 dev eth0")
	pod.IP(t, "addr add fd01::3/64 dev eth0 nodad")
	nstest.Run(t, "ip", "addr", "add", "192.0.2.7/32", "dev", "lo")
	nstest.Run(t, "ip", "addr", "add", "2001:db8:1::7/128", "dev", "lo", "nodad")
	nstest.Run(t, "nft", "add table inet other; add chain inet other nat { type nat hook postrouting priority srcnat; }; add rule inet other nat oifname out0 masquerade")
	outside.IP(t, "route add 192.0.2.7/32 via 192.0.2.1")
	outside.IP(t, "-6 route add 2001:db8:1::7 via 2001:db8::1")
	for _, v := range []struct {
		digit, subnet, pod, other, node, egress, outside, near string
	}{
		{"4", "10.1.0.0/16", "10.1.0.2", "10.1.0.3", "192.0.2.1", "192.0.2.7", "192.0.2.2", "10.1.9.9"},
		{"6", "fd01::/48", "fd01::2", "fd01::3", "2001:db8::1", "2001:db8:1::7", "2001:db8::2", "fd01:0:0:9::9"},
	} {
		listen := func(n *nstest.Neighbour, address string) *net.UDPConn {
			return nstest.UDP(t, n, netip.AddrPortFrom(netip.MustParseAddr(address), 5000).String())
		}
		atOutside, atNear := listen(outside, v.outside), listen(near, v.near)
		want := func(what, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("IPv%s: %s: source %s, want %s", v.digit, what, got, want)
			}
		}
		shared := func(set string) *nft.Element {
			return &nft.Element{Shared: true, Set: set + v.digit, Key: []string{"cni0", v.subnet}, Label: "net"}
		}
		own := &nft.Element{Set: "egress" + v.digit, Key: []string{"cni0", v.pod}, Value: []string{v.egress}, Label: "pod"}
		mustAdd(t, c, shared("masq"))
		want("before", nstest.SeenSource(t, pod, v.pod, atOutside), v.node)
		mustAdd(t, c, shared("egress_near"), own)
		want("pod to outside", nstest.SeenSource(t, pod, v.pod, atOutside), v.egress)
		want("other pod to outside", nstest.SeenSource(t, pod, v.other, atOutside), v.node)
		want("pod to its subnet behind another device", nstest.SeenSource(t, pod, v.pod, atNear), v.pod)
		mustDel(t, c, own)
		want("after", nstest.SeenSource(t, pod, v.pod, atOutside), v.node)
	}
}

// TestEgressAddress: it is read from the kernel, and the chain's exceptions have none.
func TestEgressAddress(t *testing.T) {
	c := freshNFT(t)
	n := New(Options{})
	defer n.Close()
	mustAdd(t, c,
		&nft.Element{Shared: true, Set: "egress_near4", Key: []string{"cni0", "10.1.0.0/16"}, Label: "net"},
		&nft.Element{Set: "egress4", Key: []string{"cni0", "10.1.0.2"}, Value: []string{"192.0.2.7"}, Label: "pod"},
		&nft.Element{Set: "egress6", Key: []string{"cni0", "fd01::2"}, Value: []string{"2001:db8::7"}, Label: "pod"},
	)
	for _, v := range []struct{ link, from, to, want string }{
		{"cni0", "10.1.0.2", "198.51.100.1", "192.0.2.7"},
		{"cni0", "10.1.0.2", "10.1.7.7", ""},
		{"cni0", "10.1.0.2", "224.0.0.1", ""},
		{"cni0", "10.1.0.3", "198.51.100.1", ""},
		{"cni1", "10.1.0.2", "198.51.100.1", ""},
		{"cni0", "fd01::2", "2001:db8::1", "2001:db8::7"},
	} {
		have, err := n.EgressAddress(t.Context(), v.link, netip.MustParseAddr(v.from), netip.MustParseAddr(v.to))
		if want, _ := netip.ParseAddr(v.want); err != nil || have != want {
			t.Errorf("from %s on %s to %s: %s, %v: want %s", v.from, v.link, v.to, have, err, want)
		}
	}
}

// TestHasAddress: an address of an interface, also before duplicate address detection ends, and one of a route of the
// type local. An address that another host has (DAD failed) is none.
func TestHasAddress(t *testing.T) {
	freshNFT(t)
	n := New(Options{})
	defer n.Close()
	for _, args := range []string{
		"link set lo up", "link add v0 type veth peer name v1", "link set v0 up", "link set v1 up", "address add 192.0.2.7/24 dev v0",
		"-6 address add 2001:db8::7/64 dev v0", "route add local 203.0.113.0/28 dev lo",
	} {
		nstest.Run(t, "ip", strings.Fields(args)...)
	}
	for address, want := range map[string]string{"192.0.2.7": "", "2001:db8::7": "", "203.0.113.9": "", "192.0.2.8": "v0", "198.51.100.1": "none"} {
		has, link, err := n.HasAddress(t.Context(), netip.MustParseAddr(address))
		if err != nil || has != (want == "") || has && link != "" || want == "v0" && link != want {
			t.Errorf("%s: %t, %q, %v", address, has, link, err)
		}
	}
}
