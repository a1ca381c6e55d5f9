package netops

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// mapsFeature uses all kinds of maps, in the table of another feature: a
// concatenated map for dnat, and a verdict map with a chain to jump to.
func mapsFeature() nft.Feature {
	table := inetTable()
	ports := &nft.Set{Table: table, Name: "test_ports", Key: []nft.Field{nft.IP4Addr, nft.InetProto, nft.InetService}, Data: []nft.Field{nft.IP4Addr, nft.InetService}}
	policy := &nft.Set{Table: table, Name: "test_policy", Key: []nft.Field{nft.IP4Addr}, Data: []nft.Field{nft.Verdict}}
	marks := &nft.Set{Table: table, Name: "test_marks", Key: []nft.Field{nft.PacketMark}}
	services := &nft.Set{Table: table, Name: "test_services", Key: []nft.Field{nft.InetService}, Data: []nft.Field{nft.PacketMark}}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{ports, policy, marks, services},
		Chains: func() []nft.Chain {
			return []nft.Chain{
				{Name: "test_net", Rules: []nft.Rule{nft.NewRule(nft.Drop())}},
				{
					Name: "test_prerouting", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: -100,
					Rules: []nft.Rule{
						nft.NewRule(nft.Destination4(), nft.TransportProtocol(), nft.TransportPort(), nft.DestinationFrom(ports, unix.NFPROTO_IPV4)),
						nft.NewRule(nft.Source4(), nft.VerdictFrom(policy)),
					},
				},
			}
		},
	}
}

const wantMaps = `table inet cnibox {
	map test_ports {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 10.0.0.1 . tcp . 8080 comment "cnibox:a" : 10.1.0.2 . 80 }
	}

	map test_policy {
		type ipv4_addr : verdict
		elements = { 10.0.0.9 comment "cnibox:a" : jump test_net }
	}

	set test_marks {
		type mark
		elements = { 0x00002000 comment "cnibox:a" }
	}

	map test_services {
		type inet_service : mark
		elements = { 443 comment "cnibox:a" : 0x00000007 }
	}

	chain test_net {
		drop
	}

	chain test_prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		dnat ip to ip daddr . meta l4proto . th dport map @test_ports
		ip saddr vmap @test_policy
	}
}
`

func mapping(label, port, target string) *nft.Element {
	return &nft.Element{Set: "test_ports", Key: []string{"10.0.0.1", "tcp", port}, Value: []string{target, "80"}, Label: label}
}

func TestNFTMaps(t *testing.T) {
	nstest.Fresh(t)
	schema := append(ruleset.Schema(), mapsFeature())
	c := nft.New(func() nft.Schema { return schema }, nil)
	t.Cleanup(func() { _ = c.Close() })
	els := []*nft.Element{
		mapping("cnibox:a", "8080", "10.1.0.2"),
		{Set: "test_policy", Key: []string{"10.0.0.9"}, Value: []string{"jump test_net"}, Label: "cnibox:a"},
		{Set: "test_marks", Key: []string{"0x2000"}, Label: "cnibox:a"},
		{Set: "test_services", Key: []string{"443"}, Value: []string{"0x7"}, Label: "cnibox:a"},
	}
	mustAdd(t, c, els...)
	if diff := cmp.Diff(wantMaps, nstest.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("nft list ruleset (-want +got):\n%s", diff)
	}
	drop := &nft.Element{Set: "test_policy", Key: []string{"10.0.0.7"}, Value: []string{"drop"}}
	mustAdd(t, c, drop)
	els = append(els, drop)
	for _, e := range els {
		have, found, err := c.Get(t.Context(), e)
		if err != nil || !found || !cmp.Equal(have, e) {
			t.Errorf("get %+v: %+v, %v, %v", e, have, found, err)
		}
	}
	inOtherWords := &nft.Element{Set: "test_services", Key: []string{"0443"}, Value: []string{"7"}, Label: "cnibox:a"}
	if have, _, err := c.Get(t.Context(), inOtherWords); err != nil || !cmp.Equal(have, inOtherWords) {
		t.Errorf("get in other words: %+v, %v", have, err)
	}
	mustAdd(t, c, els[:4]...) // a repeated add must succeed
	if err := c.Add(t.Context(), []*nft.Element{drop}); !errors.Is(err, ErrExists) {
		t.Errorf("an element without a label: error %v, want ErrExists", err)
	}
	for _, e := range []*nft.Element{mapping("cnibox:b", "8080", "10.1.0.2"), mapping("cnibox:a", "8080", "10.1.0.3")} {
		if err := c.Add(t.Context(), []*nft.Element{e}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), `: 10.1.0.2 . 80 } is held by "cnibox:a"`) {
			t.Errorf("add %+v: error %v", e, err)
		}
	}
	mustDel(t, c, els...)
	if err := c.RemoveBase(t.Context()); err != nil {
		t.Error(err)
	}
	if got := nstest.Run(t, "nft", "list", "ruleset"); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

// TestNFTVersionsShareATable checks that a newer version adds its objects to a
// table that an older version created. The older version must not delete a table
// that still holds elements of the newer one.
func TestNFTVersionsShareATable(t *testing.T) {
	older := freshNFT(t)
	newer := nft.New(func() nft.Schema { return append(ruleset.Schema(), mapsFeature()) }, nil)
	t.Cleanup(func() { _ = newer.Close() })
	mustAdd(t, older, masq("one", "cni0", "10.1.0.0/16"))
	mustAdd(t, newer, mapping("cnibox:a", "8080", "10.1.0.2"))
	wantKeys(t, newer, "masq4", map[string]string{"cni0 10.1.0.0/16": "one"})
	if n := strings.Count(nstest.Run(t, "nft", "list", "ruleset"), "@masq4 masquerade"); n != 1 {
		t.Errorf("%d masquerade rules, want 1", n)
	}
	mustDel(t, older, masq("", "cni0", "10.1.0.0/16"))
	if err := older.RemoveBase(t.Context()); err != nil {
		t.Error(err)
	}
	wantKeys(t, newer, "test_ports", map[string]string{"10.0.0.1 tcp 8080 10.1.0.2 80": "cnibox:a"})
}

// TestNFTRestoreWithInvalidElement checks that one invalid element does not
// prevent the restoration of the others.
func TestNFTRestoreWithInvalidElement(t *testing.T) {
	nstest.Fresh(t)
	good := mapping("cnibox:a", "8080", "10.1.0.2")
	restored := []*nft.Element{
		{Set: "test_policy", Key: []string{"10.0.0.9"}, Value: []string{"jump no_such_chain"}},
		{Set: "of_another_version", Key: []string{"x"}},
		good, good,
		masq("wide", "cni0", "10.1.0.0/16"), masq("within", "cni0", "10.1.2.0/24"),
	}
	c := nft.New(func() nft.Schema { return append(ruleset.Schema(), mapsFeature()) }, func(context.Context) ([]*nft.Element, error) { return restored, nil })
	t.Cleanup(func() { _ = c.Close() })
	mustAdd(t, c, mapping("cnibox:b", "9090", "10.1.0.3"))
	wantKeys(t, c, "test_ports", map[string]string{
		"10.0.0.1 tcp 8080 10.1.0.2 80": "cnibox:a", "10.0.0.1 tcp 9090 10.1.0.3 80": "cnibox:b",
	})
	wantKeys(t, c, "masq4", map[string]string{"cni0 10.1.0.0/16": "wide"})
}
