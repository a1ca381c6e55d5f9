package verdict

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// packets are packets of each direction and family, of which more or less is known.
func packets() []*Packet {
	a, b := netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("192.0.2.2:8472")
	return []*Packet{
		{Direction: Received, In: "eth0", Protocol: unix.IPPROTO_UDP, Source: a, Destination: b, State: New},
		{Direction: Sent, Out: "eth0", Protocol: unix.IPPROTO_UDP, Source: netip.MustParseAddrPort("[2001:db8::1]:0"), Destination: netip.MustParseAddrPort("[2001:db8::2]:51820")},
		{Direction: Forwarded, In: "veth0123456789a", Destination: b},
	}
}

// expressions returns the attributes of a rule with one expression of each name, all with the same data.
func expressions(data []byte) []byte {
	var b nlconn.Body
	b.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, name := range []string{"meta", "payload", "ct", "bitwise", "cmp", "range", "immediate", "reject", "target", "limit"} {
			b.Nest(unix.NFTA_LIST_ELEM, func() {
				b.Text(unix.NFTA_EXPR_NAME, name)
				b.Bytes(unix.NFTA_EXPR_DATA, data)
			})
		}
	})
	return b
}

// FuzzRule: no rule and no element that the kernel could report makes the evaluation panic.
func FuzzRule(f *testing.F) {
	var load nlconn.Body
	for kind := range uint16(8) {
		load.Net32(kind, uint32(kind))
	}
	f.Add(expressions(load), "udp")
	f.Add(make([]byte, 48), "multiport")
	f.Add(make([]byte, 160), "conntrack")
	f.Fuzz(func(_ *testing.T, data []byte, name string) {
		for _, p := range packets() {
			p.iptablesMatch(name, data)
			for _, attrs := range [][]byte{data, expressions(data)} {
				h, _ := nft.DecodeRule(nft.Table{Family: unix.NFPROTO_INET}, attrs)
				r := &nftRule{HeldRule: h}
				for i := range r.Expressions {
					if r.Expressions[i].Name != "lookup" { // it reads a set of the kernel
						p.evaluate(&r.Expressions[i], newRegisters())
					}
				}
				r.drop()
			}
		}
	})
}

// FuzzListing: so does no line of iptables-legacy.
func FuzzListing(f *testing.F) {
	f.Add("-s 192.0.2.0/24 ! -i up+ -p udp -m udp --dport 1:9000 -m comment --comment \"a b\" -j DROP")
	f.Fuzz(func(_ *testing.T, text string) {
		for _, p := range packets() {
			(&legacyRule{HeldRule: listed(text)}).match(p)
		}
	})
}

// listed returns a rule of the chain INPUT with this text.
func listed(text string) *iptables.HeldRule {
	if c := iptables.ParseListing("-A INPUT " + text).Chains["INPUT"]; c != nil && len(c.Rules) > 0 {
		return c.Rules[0]
	}
	return &iptables.HeldRule{}
}
