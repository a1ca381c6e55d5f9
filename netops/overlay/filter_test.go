package overlay

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/nftlist"
)

func openFilter(t *testing.T) *Filter {
	t.Helper()
	f, err := OpenFilter(netops.New(netops.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func ensureFilter(t *testing.T, f *Filter, want ...NAT) {
	t.Helper()
	if err := f.Ensure(context.Background(), want); err != nil {
		t.Fatal(err)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func natOf(n overlayNet) NAT {
	return NAT{Network: netip.MustParsePrefix(n.network), Subnet: netip.MustParsePrefix(n.ownSubnet), Masquerade: true}
}

// TestOverlayFilterListedByOtherNFT lists the table by several versions of nft. Each loads what it listed, and the filter is as
// before.
func TestOverlayFilterListedByOtherNFT(t *testing.T) {
	programs := nftlist.Find(t)
	f := openFilter(t)
	v4, v6 := natOf(net4()), natOf(net6())
	v4.Exceptions = prefixes("192.168.0.0/16", "172.16.0.0/12")
	v4.Tunnel = &TunnelFilter{Port: 8472, VNI: 1, Sources: []netip.Addr{netip.MustParseAddr("192.168.50.2")}}
	v6.Encrypted, v6.Local = "flannel-wg", prefixes("fd44:9::/64")
	v6.Tunnel = &TunnelFilter{Port: 51820, Sources: []netip.Addr{netip.MustParseAddr("fd50::2")}}
	ensureFilter(t, f, v4, v6)
	if err := programs.Check(); err != nil {
		t.Error(err)
	}
	if err := programs.Reload(func() error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestOverlayFilterAsNftShowsIt compares the table with flannel's rules in their
// order: FLANNEL-POSTRTG with the mark's mask, the networks without masquerade,
// and the filter for tunnelled packets.
func TestOverlayFilterAsNftShowsIt(t *testing.T) {
	f := openFilter(t)
	v4, v6 := natOf(net4()), natOf(net6())
	v4.Exceptions = prefixes("192.168.0.0/16", "192.168.7.0/24", "172.16.0.0/12")
	v4.Tunnel = &TunnelFilter{Port: 8472, VNI: 1, Sources: []netip.Addr{netip.MustParseAddr("192.168.50.2")}}
	v6.KeepPorts = true
	ensureFilter(t, f, v6, v4)
	const want = `table inet cnibox_overlay {
	set nomasq4 {
		type ipv4_addr . ipv4_addr
		flags interval
		elements = { 10.244.0.0/16 . 172.16.0.0/12,
			     10.244.0.0/16 . 192.168.0.0/16 }
	}

	set vteps4 {
		type ipv4_addr
		elements = { 192.168.50.2 }
	}

	chain tunnelled4 {
		ip saddr != @vteps4 ip daddr @vteps4 drop
		ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 drop
		ip saddr @vteps4 fib saddr . iif oif missing drop
		fib saddr type local drop
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta nfproto ipv4 meta mark & 0x00004000 == 0x00004000 return
		ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
		ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return
		ip saddr . ip daddr @nomasq4 return
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
		meta nfproto ipv6 meta mark & 0x00004000 == 0x00004000 return
		ip6 saddr fd44:1::/64 ip6 daddr fd44::/16 return
		ip6 saddr fd44::/16 ip6 daddr fd44:1::/64 return
		ip6 saddr != fd44::/16 ip6 daddr fd44:1::/64 return
		ip6 saddr fd44::/16 ip6 daddr != ff00::/8 masquerade
		ip6 saddr != fd44::/16 ip6 daddr fd44::/16 masquerade
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		meta nfproto ipv4 udp dport 8472 @th,96,24 0x1 goto tunnelled4
	}

	chain input {
		type filter hook input priority filter; policy accept;
		udp dport 8472 @th,96,24 0x1 ip saddr != @vteps4 drop
		udp dport 8472 @th,96,24 0x1 meta iifkind "veth" ip saddr @vteps4 fib saddr . iif oif missing drop
		udp dport 8472 @th,96,24 0x1 meta iifkind "netkit" ip saddr @vteps4 fib saddr . iif oif missing drop
		udp dport 8472 @th,96,24 0x1 meta iifkind "bridge" ip saddr @vteps4 fib saddr . iif oif missing drop
	}
}
`
	list := func() string { return nstest.Run(t, "nft", "list", "table", "inet", "cnibox_overlay") }
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Error(diff)
	}
	// Replace one source. The handles show that the rules stay.
	handles := nstest.Run(t, "nft", "-a", "list", "chain", "inet", "cnibox_overlay", "postrouting")
	v4.Tunnel.Sources = []netip.Addr{netip.MustParseAddr("192.168.50.3")}
	ensureFilter(t, f, v4, v6)
	if !strings.Contains(list(), "{ 192.168.50.3 }") || nstest.Run(t, "nft", "-a", "list", "chain", "inet", "cnibox_overlay", "postrouting") != handles {
		t.Errorf("after a change of sources:\n%s", list())
	}
	select {
	case <-f.Changes():
		t.Error("own changes are reported as a disturbance")
	case <-time.After(100 * time.Millisecond):
	}
	before := list()
	for _, cut := range []string{"flush ruleset", "flush chain inet cnibox_overlay postrouting", "delete element inet cnibox_overlay vteps4 { 192.168.50.3 }"} {
		nstest.Run(t, "nft", strings.Fields(cut)...)
		await.Next(t, f.Changes(), cut+": a change notification")
		ensureFilter(t, f, v4, v6)
		if diff := cmp.Diff(before, list()); diff != "" {
			t.Errorf("%s: %s", cut, diff)
		}
	}
	nstest.Run(t, "nft", "add", "table", "inet", "other")
	defer nstest.Run(t, "nft", "delete", "table", "inet", "other")
	select {
	case <-f.Changes():
		t.Error("a change of another table is reported")
	case <-time.After(100 * time.Millisecond):
	}
	ensureFilter(t, f)
	if left := nstest.Run(t, "nft", "list", "tables"); strings.Contains(left, "cnibox_overlay") {
		t.Errorf("nothing is wanted, left: %s", left)
	}
}
