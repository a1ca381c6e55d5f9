package netops

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

const wantRouted = `table inet cnibox {
	set routed_uplink {
		type ifname
		elements = { "eth0" comment "net one" }
	}

	set routed_kind4 {
		type ifname . ipv4_addr
		flags interval
		elements = { "veth" . 10.0.0.0/16 comment "net one" }
	}

	set routed_kind6 {
		type ifname . ipv6_addr
		flags interval
	}

	set routed_kind_near4 {
		type ifname . ipv4_addr
		flags interval
		elements = { "veth" . 10.0.0.0/16 comment "net one" }
	}

	set routed_kind_near6 {
		type ifname . ipv6_addr
		flags interval
	}

	set routed_kind_out4 {
		type ifname . ipv4_addr
		flags interval
	}

	set routed_kind_out6 {
		type ifname . ipv6_addr
		flags interval
		elements = { "veth" . fd00::/56 comment "net one" }
	}

	chain routed_incoming {
		type filter hook prerouting priority mangle; policy accept;
		ct mark & 0x00000080 != 0x00000000 meta mark set meta mark | 0x00000080
		ct state new iifname @routed_uplink fib daddr type local ct mark set ct mark | 0x00000080
	}

	chain routed_kind_outgoing {
		type filter hook prerouting priority dstnat + 10; policy accept;
		ct state new ip daddr 224.0.0.0/4 return
		ct state new iifname "veth*" meta iifkind . ip daddr @routed_kind_near4 return
		ct state new iifname "veth*" meta iifkind . ip saddr @routed_kind_out4 ct mark set ct mark | 0x00000080 meta mark set meta mark | 0x00000080
		ct state new ip6 daddr ff00::/8 return
		ct state new iifname "veth*" meta iifkind . ip6 daddr @routed_kind_near6 return
		ct state new iifname "veth*" meta iifkind . ip6 saddr @routed_kind_out6 ct mark set ct mark | 0x00000080 meta mark set meta mark | 0x00000080
	}

	chain routed_kind_postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr 224.0.0.0/4 return
		iifname "veth*" meta iifkind . ip daddr @routed_kind_near4 return
		iifname "veth*" meta iifkind . ip saddr @routed_kind4 masquerade fully-random
		ip6 daddr ff00::/8 return
		iifname "veth*" meta iifkind . ip6 daddr @routed_kind_near6 return
		iifname "veth*" meta iifkind . ip6 saddr @routed_kind6 masquerade fully-random
	}
}
`

func TestNFTRoutedAsNftShowsIt(t *testing.T) {
	c := freshNFT(t)
	shared := func(set string, key ...string) *nft.Element {
		return &nft.Element{Shared: true, Set: set, Key: key, Label: "net one"}
	}
	mustAdd(t, c,
		shared("routed_kind4", "veth", "10.0.0.0/16"), shared("routed_kind_near4", "veth", "10.0.0.0/16"),
		shared("routed_kind_out6", "veth", "fd00::/56"), shared("routed_uplink", "eth0"),
	)
	if diff := cmp.Diff(wantRouted, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("nft list ruleset (-want +got):\n%s", diff)
	}
}
