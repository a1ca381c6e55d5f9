package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// mapped returns an element of portmap4.
func mapped(label, port, target string) *nft.Element {
	return &nft.Element{Set: "portmap4", Key: []string{"tcp", port}, Value: []string{target, "80"}, Label: label}
}

func TestPortMapAsNftShowsIt(t *testing.T) {
	c := freshNFT(t)
	verdict, err := ConditionVerdict(false, []PortCondition{
		{Source: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}, Not: true}, {Input: []string{"eth*"}}, {Input: []string{"br-lan"}, Not: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	six, err := ConditionVerdict(true, []PortCondition{{Destination: []netip.Prefix{netip.MustParsePrefix("fd00::1/8")}, Not: true}})
	if err != nil {
		t.Fatal(err)
	}
	mark, err := MarkVerdict(13)
	if err != nil {
		t.Fatal(err)
	}
	els := []*nft.Element{
		mapped("cnibox:a", "8080", "10.1.0.2"),
		{Set: "portmap_ip_udp6", Key: []string{"fd00::1", "53"}, Value: []string{"fd01::2", "53"}, Label: "cnibox:a"},
		{Set: "portmap_if4", Key: []string{"tcp", "8080"}, Value: []string{verdict}, Label: "cnibox:a"},
		{Set: "portmap_ip_if6", Key: []string{"fd00::1", "udp", "53"}, Value: []string{six}, Label: "cnibox:a"},
		{Set: "portmap_snat4", Key: []string{"10.1.0.2"}, Value: []string{"goto portmap_hairpin"}, Label: "cnibox:a"},
		{Set: "portmap_snat6", Key: []string{"fd01::2"}, Value: []string{"goto portmap_masquerade"}, Label: "cnibox:a"},
		{Set: "portmap_mark4", Key: []string{"10.1.0.2"}, Value: []string{mark}, Label: "cnibox:a"},
		{Shared: true, Set: "portmap_near4", Key: []string{"10.1.0.0/24", "10.1.0.0/24"}, Label: "net"},
		{Shared: true, Set: "portmap_local", Key: []string{"cni0"}, Label: "net"},
	}
	mustAdd(t, c, els...)
	if diff := cmp.Diff(wantPortMap, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("nft list ruleset (-want +got):\n%s", diff)
	}
	for _, e := range els {
		have, found, err := c.Get(t.Context(), e)
		if err != nil || !found || !cmp.Equal(have, e) {
			t.Errorf("get %+v: %+v, %v, %v", e, have, found, err)
		}
	}
	if err := c.Add(t.Context(), []*nft.Element{mapped("cnibox:b", "8080", "10.1.0.3")}); !errors.Is(err, ErrExists) {
		t.Errorf("a port of another: %v, want ErrExists", err)
	}
	mustDel(t, c, els...)
	if err := c.RemoveBase(t.Context()); err != nil {
		t.Error(err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

// TestPortRangeAsNftShowsIt checks that a range of ports is one element, and that the
// kernel refuses a range that begins or ends in another. It accepts a range that
// contains another; the claims in the store prevent that.
func TestPortRangeAsNftShowsIt(t *testing.T) {
	c := freshNFT(t)
	ranged := func(label, ports string) *nft.Element {
		return &nft.Element{Set: "portmap_range4", Key: []string{"tcp", ports}, Value: []string{"10.1.0.2"}, Label: label}
	}
	els := []*nft.Element{
		ranged("cnibox:a", "8000-8100"), ranged("cnibox:a", "8102-8103"), ranged("cnibox:b", "8101"),
		{Set: "portmap_ip_range6", Key: []string{"fd00::1", "udp", "1-65535"}, Value: []string{"fd01::2"}, Label: "cnibox:a"},
	}
	mustAdd(t, c, els...)
	if diff := cmp.Diff(wantPortRange, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("nft list ruleset (-want +got):\n%s", diff)
	}
	for _, e := range els {
		have, found, err := c.Get(t.Context(), e)
		if err != nil || !found || !cmp.Equal(have, e) {
			t.Errorf("get %+v: %+v, %v, %v", e, have, found, err)
		}
	}
	for _, ports := range []string{"8000-8100", "8050", "7999-8000", "8100-8101"} {
		if err := c.Add(t.Context(), []*nft.Element{ranged("cnibox:c", ports)}); !errors.Is(err, ErrExists) {
			t.Errorf("ports %s beside the others: %v, want ErrExists", ports, err)
		}
	}
	mustAdd(t, c, els...)
	mustDel(t, c, els[0])
	wantKeys(t, c, "portmap_range4", map[string]string{"tcp 8101 10.1.0.2": "cnibox:b", "tcp 8102-8103 10.1.0.2": "cnibox:a"})
	mustDel(t, c, els...)
	if err := c.RemoveBase(t.Context()); err != nil {
		t.Error(err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

// TestChainsOnDemand checks that the chains that elements jump to are created
// with the elements: in an existing table, in a flushed table, and in a table
// that lost a chain.
func TestChainsOnDemand(t *testing.T) {
	nstest.Fresh(t)
	first := &nft.Element{Set: "portmap_if4", Key: []string{"tcp", "1"}, Value: []string{"goto portmap_if4/saddr/10.0.0.0/8"}, Label: "cnibox:a"}
	again := &nft.Element{Set: "portmap_if4", Key: []string{"tcp", "2"}, Value: first.Value, Label: "cnibox:a"}
	other := &nft.Element{Set: "portmap_if4", Key: []string{"tcp", "3"}, Value: []string{"goto portmap_if4/not/daddr/10.0.0.0/8"}, Label: "cnibox:b"}
	recorded := []*nft.Element{first}
	c := nft.New(ruleset.Schema, func(context.Context) ([]*nft.Element, error) { return recorded, nil })
	t.Cleanup(func() { _ = c.Close() })
	mustAdd(t, c, mapped("cnibox:a", "8080", "10.1.0.2"))
	mustAdd(t, c, first, again)
	recorded = []*nft.Element{first, other} // a pending attachment is recorded before its elements are added
	mustAdd(t, c, other, &nft.Element{Set: "portmap_if4", Key: []string{"tcp", "4"}, Value: other.Value, Label: "cnibox:b"})
	recorded = []*nft.Element{first}
	rules := func(text string, want int) {
		t.Helper()
		if n := strings.Count(nstest.Run(t, "nft", "list", "ruleset"), text); n != want {
			t.Errorf("%d times %q, want %d", n, text, want)
		}
	}
	rules("ip saddr 10.0.0.0/8 goto portmap_translate", 1)
	rules("ip daddr != 10.0.0.0/8 goto portmap_translate", 1)
	nstest.Run(t, "nft", "flush", "ruleset")
	mustAdd(t, c, other)
	wantKeys(t, c, "portmap_if4", map[string]string{
		"tcp 1 " + first.Value[0]: "cnibox:a", "tcp 3 " + other.Value[0]: "cnibox:b",
	})
	rules("ip saddr 10.0.0.0/8 goto portmap_translate", 1)
	mustDel(t, c, first, other)
	nstest.Run(t, "nft", "delete", "chain", "inet", "cnibox", strings.TrimPrefix(first.Value[0], "goto "))
	mustAdd(t, c, again)
	rules("ip saddr 10.0.0.0/8 goto portmap_translate", 1)
}

// TestPortMapMessageCount counts the messages for one more container, with ten
// other ports and with two thousand.
func TestPortMapMessageCount(t *testing.T) {
	c := freshNFT(t)
	one := []*nft.Element{
		mapped("cnibox:new", "60000", "10.1.0.2"),
		{Set: "portmap_snat4", Key: []string{"10.1.0.2"}, Value: []string{"goto portmap_hairpin"}, Label: "cnibox:new"},
		{Shared: true, Set: "portmap_near4", Key: []string{"10.1.0.0/16", "10.1.0.0/16"}, Label: "net"},
	}
	mustAdd(t, c, one[2])
	cost := func() (uint32, int) {
		t.Helper()
		before, read := connOf(t, c).Requests(), 0
		for _, e := range one {
			_, found, err := c.Get(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			if found {
				read++
			}
		}
		mustAdd(t, c, one[:2]...)
		mustDel(t, c, one[:2]...)
		return connOf(t, c).Requests() - before, read
	}
	fill := func(from, to int) {
		t.Helper()
		var els []*nft.Element
		for i := from; i < to; i++ {
			address := fmt.Sprintf("10.1.%d.%d", i/250+1, i%250+1)
			els = append(els, mapped("cnibox:old", strconv.Itoa(1000+i), address),
				&nft.Element{Set: "portmap_snat4", Key: []string{address}, Value: one[1].Value, Label: "cnibox:old"})
		}
		mustAdd(t, c, els...)
	}
	fill(0, 10)
	few, _ := cost()
	fill(10, 2000)
	many, read := cost()
	if few != many || few == 0 || read != 1 {
		t.Errorf("%d messages beside 10 ports, %d beside 2000; %d elements found, want the shared one", few, many, read)
	}
}

const wantPortMap = `table inet cnibox {
	map portmap4 {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 comment "cnibox:a" : 10.1.0.2 . 80 }
	}

	map portmap_ip_tcp4 {
		type ipv4_addr . inet_service : ipv4_addr . inet_service
	}

	map portmap_ip_udp4 {
		type ipv4_addr . inet_service : ipv4_addr . inet_service
	}

	map portmap_ip_sctp4 {
		type ipv4_addr . inet_service : ipv4_addr . inet_service
	}

	map portmap_if4 {
		type inet_proto . inet_service : verdict
		elements = { tcp . 8080 comment "cnibox:a" : goto portmap_if4/not/saddr/10.9.0.0/16/iif/eth/any/not/iif/br-lan }
	}

	map portmap_ip_if4 {
		type ipv4_addr . inet_proto . inet_service : verdict
	}

	map portmap_snat4 {
		type ipv4_addr : verdict
		elements = { 10.1.0.2 comment "cnibox:a" : goto portmap_hairpin }
	}

	set portmap_near4 {
		type ipv4_addr . ipv4_addr
		flags interval
		elements = { 10.1.0.0/24 . 10.1.0.0/24 comment "net" }
	}

	map portmap_mark4 {
		type ipv4_addr : verdict
		elements = { 10.1.0.2 comment "cnibox:a" : jump portmap_bit13 }
	}

	map portmap6 {
		type inet_proto . inet_service : ipv6_addr . inet_service
	}

	map portmap_ip_tcp6 {
		type ipv6_addr . inet_service : ipv6_addr . inet_service
	}

	map portmap_ip_udp6 {
		type ipv6_addr . inet_service : ipv6_addr . inet_service
		elements = { fd00::1 . 53 comment "cnibox:a" : fd01::2 . 53 }
	}

	map portmap_ip_sctp6 {
		type ipv6_addr . inet_service : ipv6_addr . inet_service
	}

	map portmap_if6 {
		type inet_proto . inet_service : verdict
	}

	map portmap_ip_if6 {
		type ipv6_addr . inet_proto . inet_service : verdict
		elements = { fd00::1 . udp . 53 comment "cnibox:a" : goto portmap_if6/not/daddr/fd00__/8 }
	}

	map portmap_snat6 {
		type ipv6_addr : verdict
		elements = { fd01::2 comment "cnibox:a" : goto portmap_masquerade }
	}

	set portmap_near6 {
		type ipv6_addr . ipv6_addr
		flags interval
	}

	map portmap_mark6 {
		type ipv6_addr : verdict
	}

	set portmap_local {
		type ifname
		elements = { "cni0" comment "net" }
	}

	chain portmap_translate {
		dnat ip to ip daddr . tcp dport map @portmap_ip_tcp4
		dnat ip to ip daddr . udp dport map @portmap_ip_udp4
		dnat ip to ip daddr . sctp dport map @portmap_ip_sctp4
		meta nfproto ipv4 dnat ip to meta l4proto . tcp dport map @portmap4
		meta nfproto ipv4 dnat ip to meta l4proto . udp dport map @portmap4
		meta nfproto ipv4 dnat ip to meta l4proto . sctp dport map @portmap4
		dnat ip6 to ip6 daddr . tcp dport map @portmap_ip_tcp6
		dnat ip6 to ip6 daddr . udp dport map @portmap_ip_udp6
		dnat ip6 to ip6 daddr . sctp dport map @portmap_ip_sctp6
		meta nfproto ipv6 dnat ip6 to meta l4proto . tcp dport map @portmap6
		meta nfproto ipv6 dnat ip6 to meta l4proto . udp dport map @portmap6
		meta nfproto ipv6 dnat ip6 to meta l4proto . sctp dport map @portmap6
	}

	chain portmap {
		ip daddr . meta l4proto . th dport vmap @portmap_ip_if4
		meta nfproto ipv4 meta l4proto . th dport vmap @portmap_if4
		ip6 daddr . meta l4proto . th dport vmap @portmap_ip_if6
		meta nfproto ipv6 meta l4proto . th dport vmap @portmap_if6
		goto portmap_translate
	}

	chain portmap_prerouting {
		type nat hook prerouting priority dstnat + 1; policy accept;
		fib daddr type local goto portmap
	}

	chain portmap_output {
		type nat hook output priority -99; policy accept;
		fib daddr type local goto portmap
	}

	chain portmap_masquerade {
		ip daddr vmap @portmap_mark4
		ip6 daddr vmap @portmap_mark6
		masquerade
	}

	chain portmap_hairpin {
		ip saddr 127.0.0.0/8 goto portmap_masquerade
		ip6 saddr ::1 goto portmap_masquerade
		ip saddr . ip daddr @portmap_near4 goto portmap_masquerade
		ip6 saddr . ip6 daddr @portmap_near6 goto portmap_masquerade
	}

	chain portmap_postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat ip daddr vmap @portmap_snat4
		ct status dnat ip6 daddr vmap @portmap_snat6
	}

	chain portmap_guard {
		type filter hook prerouting priority raw; policy accept;
		iifname @portmap_local ip daddr 127.0.0.0/8 drop
		iifname @portmap_local ip saddr 127.0.0.0/8 drop
	}

	chain portmap_if4/not/saddr/10.9.0.0/16/iif/eth/any/not/iif/br-lan {
		ip saddr != 10.9.0.0/16 iifname "eth*" iifname != "br-lan" goto portmap_translate
	}

	chain portmap_if6/not/daddr/fd00__/8 {
		ip6 daddr != fd00::/8 goto portmap_translate
	}

	chain portmap_bit13 {
		meta mark set meta mark | 0x00002000
	}
}
`

const wantPortRange = `table inet cnibox {
	map portmap_ip_range4 {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr
		flags interval
	}

	map portmap_range4 {
		type inet_proto . inet_service : ipv4_addr
		flags interval
		elements = { tcp . 8000-8100 comment "cnibox:a" : 10.1.0.2,
			     tcp . 8102-8103 comment "cnibox:a" : 10.1.0.2,
			     tcp . 8101 comment "cnibox:b" : 10.1.0.2 }
	}

	map portmap_ip_range6 {
		type ipv6_addr . inet_proto . inet_service : ipv6_addr
		flags interval
		elements = { fd00::1 . udp . 1-65535 comment "cnibox:a" : fd01::2 }
	}

	map portmap_range6 {
		type inet_proto . inet_service : ipv6_addr
		flags interval
	}

	chain portmap_range {
		dnat ip to ip daddr . meta l4proto . th dport map @portmap_ip_range4
		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @portmap_range4
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @portmap_ip_range6
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @portmap_range6
	}

	chain portmap_range_prerouting {
		type nat hook prerouting priority dstnat + 1; policy accept;
		fib daddr type local goto portmap_range
	}

	chain portmap_range_output {
		type nat hook output priority -99; policy accept;
		fib daddr type local goto portmap_range
	}
}
`
