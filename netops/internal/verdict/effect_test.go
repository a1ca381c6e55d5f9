package verdict

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// TestEffect: what rules do with packets besides their verdict. One that reads the same field has no effect.
func TestEffect(t *testing.T) {
	numbers := func(pairs ...uint32) func(*nlconn.Body) {
		return func(b *nlconn.Body) {
			for i := 0; i < len(pairs); i += 2 {
				b.Net32(uint16(pairs[i]), pairs[i+1])
			}
		}
	}
	target := func(name string, info []byte) func(*nlconn.Body) {
		return func(b *nlconn.Body) {
			b.Text(iptables.TargetName, name)
			b.Bytes(unix.NFTA_TARGET_INFO, info)
		}
	}
	option := func(kind uint8, pairs ...uint32) func(*nlconn.Body) {
		return func(b *nlconn.Body) {
			b.Uint8(unix.NFTA_EXTHDR_TYPE, kind)
			numbers(pairs...)(b)
		}
	}
	header := uint32(unix.NFT_PAYLOAD_NETWORK_HEADER)
	for _, v := range []struct {
		name string
		fill func(*nlconn.Body)
		want effect
	}{
		{"notrack", numbers(), untracks},
		{"target", target("NOTRACK", nil), untracks},
		{"target", target("CT", []byte{ctNotrack}), untracks},
		{"target", target("CT", []byte{0}), ""},
		{"target", target("CT", nil), ""},
		{"ct", numbers(unix.NFTA_CT_KEY, unix.NFT_CT_ZONE, unix.NFTA_CT_SREG, 1), zones},
		{"ct", numbers(unix.NFTA_CT_KEY, unix.NFT_CT_ZONE, unix.NFTA_CT_DREG, 1), ""},
		{"ct", numbers(unix.NFTA_CT_KEY, unix.NFT_CT_MARK, unix.NFTA_CT_SREG, 1), ""},
		{"target", target("TTL", nil), shortens},
		{"target", target("HL", nil), shortens},
		{"payload", numbers(unix.NFTA_PAYLOAD_SREG, 1, unix.NFTA_PAYLOAD_BASE, header, unix.NFTA_PAYLOAD_OFFSET, offsetTTL), shortens},
		{"payload", numbers(unix.NFTA_PAYLOAD_DREG, 1, unix.NFTA_PAYLOAD_BASE, header, unix.NFTA_PAYLOAD_OFFSET, offsetTTL), ""},
		{"target", target("TCPMSS", nil), clamps},
		{"target", target("MARK", nil), ""},
		{"exthdr", option(2, unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT, unix.NFTA_EXTHDR_SREG, 1), clamps},
		{"exthdr", option(2, unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT, unix.NFTA_EXTHDR_DREG, 1), ""},
		{"exthdr", option(3, unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT, unix.NFTA_EXTHDR_SREG, 1), ""},
		{"exthdr", option(2, unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_IPV6, unix.NFTA_EXTHDR_SREG, 1), ""},
	} {
		var b nlconn.Body
		b.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
			b.Nest(unix.NFTA_LIST_ELEM, func() {
				b.Text(unix.NFTA_EXPR_NAME, v.name)
				b.Nest(unix.NFTA_EXPR_DATA, func() { v.fill(&b) })
			})
		})
		h, err := nft.DecodeRule(nft.Table{Family: unix.NFPROTO_INET}, b)
		if err != nil || len(h.Expressions) != 1 {
			t.Fatalf("%s: %+v, %v", v.name, h, err)
		}
		if have := (&nftRule{HeldRule: h}).effect(); have != v.want {
			t.Errorf("%s % x: %q, want %q", v.name, []byte(b), have, v.want)
		}
	}
	for text, want := range map[string]effect{
		"-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu": clamps, "-j TTL --ttl-set 1": shortens, "-j HL --hl-dec 1": shortens,
		"-j NOTRACK": untracks, "-j CT --notrack": untracks, "-j CT --zone 1": "", "-m tcpmss --mss 1:9 -j ACCEPT": "",
	} {
		if have := (&legacyRule{HeldRule: listed(text)}).effect(); have != want {
			t.Errorf("%s: %q, want %q", text, have, want)
		}
	}
}
