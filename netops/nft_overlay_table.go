package netops

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// kubeMasqueradeMark is kube-proxy's bit for packets that it masquerades.
	kubeMasqueradeMark = 0x4000
	// vxlanVNIOffset is the VNI's place behind the UDP header's begin (RFC 768,
	// RFC 7348 section 5).
	vxlanVNIOffset = 8 + 4
)

func overlayTable() nftTable { return nftTable{unix.NFPROTO_INET, "cnibox_overlay"} }

// overlaySources is the set of nodes that tunnelled packets are accepted from.
func overlaySources(is6 bool) *nftSet {
	if is6 {
		return &nftSet{table: overlayTable(), name: "vteps6", key: []field{ip6Addr}}
	}
	return &nftSet{table: overlayTable(), name: "vteps4", key: []field{ip4Addr}}
}

// overlayExceptions is the set of what keeps its source, as (from, to).
func overlayExceptions(is6 bool) *nftSet {
	if is6 {
		return &nftSet{table: overlayTable(), name: "nomasq6", key: []field{ip6Prefix, ip6Prefix}}
	}
	return &nftSet{table: overlayTable(), name: "nomasq4", key: []field{ip4Prefix, ip4Prefix}}
}

// overlayTableMessages make the table whole, in the place of what is there. With
// nothing wanted it is only deleted.
func overlayTableMessages(want []OverlayNAT, sources map[bool][]netip.Addr) ([]nlconn.Message, error) {
	made, err := overlayTable().message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	if err != nil {
		return nil, err
	}
	gone, err := overlayTable().message(unix.NFT_MSG_DELTABLE, 0)
	if err != nil {
		return nil, err
	}
	// Deleting what may be absent is an error, so it is made first.
	msgs := []nlconn.Message{made, gone}
	f, entries, err := overlayFeature(want, sources)
	if err != nil || len(f.chains()) == 0 {
		return msgs, err
	}
	more, err := f.messages()
	if err != nil {
		return nil, err
	}
	elements, err := elementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, entries)
	return append(append(msgs, more...), elements...), err
}

// overlayFeature is the table's sets, chains and elements.
func overlayFeature(want []OverlayNAT, sources map[bool][]netip.Addr) (*nftFeature, []*entry, error) {
	f := &nftFeature{table: overlayTable()}
	nat := nftChain{name: "postrouting", kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: prioritySourceNAT}
	input := nftChain{name: "input", kind: "filter", hook: unix.NF_INET_LOCAL_IN, priority: priorityFilter}
	var entries []*entry
	for i := range want {
		w := &want[i]
		is6 := w.Network.Addr().Is6()
		if w.Masquerade {
			nat.rules = append(nat.rules, w.masqueradeRules()...)
		}
		if set := overlayExceptions(is6); w.Masquerade && len(w.Exceptions) > 0 {
			f.sets = append(f.sets, set)
			for _, p := range w.Exceptions {
				n, err := entryOf(nftSchema{*f}, &Element{Set: set.name, Key: []string{w.Network.Masked().String(), p.String()}})
				if err != nil {
					return nil, nil, err
				}
				entries = append(entries, n)
			}
		}
		if set := overlaySources(is6); w.Tunnel != nil {
			f.sets = append(f.sets, set)
			input.rules = append(input.rules, w.Tunnel.rule(set))
			for _, a := range sources[is6] {
				entries = append(entries, &entry{set: set, key: a.AsSlice()})
			}
		}
	}
	f.chains = func() []nftChain {
		return slices.DeleteFunc([]nftChain{nat, input}, func(c nftChain) bool { return len(c.rules) == 0 })
	}
	return f, entries, nil
}

// masqueradeRules are those of flannel's FLANNEL-POSTRTG chain, in its order.
func (w *OverlayNAT) masqueradeRules() []nftRule {
	network, subnet := w.Network.String(), w.Subnet.String()
	multicast, l3, source, destination := "224.0.0.0/4", byte(unix.NFPROTO_IPV4), source4, destination4
	is6 := w.Network.Addr().Is6()
	if is6 {
		multicast, l3, source, destination = "ff00::/8", unix.NFPROTO_IPV6, source6, destination6
	}
	rules := []nftRule{
		rule(ofFamily(l3), marked(kubeMasqueradeMark), returns()),
		rule(sourceIn(subnet), destinationIn(network), returns()),
		rule(sourceIn(network), destinationIn(subnet), returns()),
		// Clients from elsewhere are seen by the node's own pods as they are.
		rule(sourceNotIn(network), destinationIn(subnet), returns()),
	}
	if len(w.Exceptions) > 0 {
		rules = append(rules, rule(source(), destination(), in(overlayExceptions(is6)), returns()))
	}
	hide := masqueradeAtRandom()
	if w.KeepPorts {
		hide = masquerade()
	}
	return append(rules,
		rule(sourceIn(network), destinationNotIn(multicast), hide),
		rule(sourceNotIn(network), destinationIn(network), hide),
	)
}

// rule drops VXLAN packets of the VNI that come from others than the set's.
// Other VNIs on the port are other programs' matter.
func (t *TunnelFilter) rule(set *nftSet) nftRule {
	source := source4
	if set.key[0] == ip6Addr {
		source = source6
	}
	return rule(
		transportProtocol(), equals([]byte{unix.IPPROTO_UDP}), next(),
		transportPort(), equals(binary.BigEndian.AppendUint16(nil, t.Port)), next(),
		loadVNI(), equals(vniBytes(t.VNI)), next(),
		source(), notIn(set), drops(),
	)
}

// equals compares what was loaded into the first register.
func equals(data []byte) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: data})
	}
}

// loadVNI reads the VNI of a VXLAN packet.
func loadVNI() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: vxlanVNIOffset, Len: 3, DestRegister: b.next})
	}
}

// notIn matches if what was loaded so far is not in the set.
func notIn(set *nftSet) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Lookup{SourceRegister: firstRegister, SetName: set.name, Invert: true})
		b.next = firstRegister
	}
}

// marked matches if the packet's mark has all of the bits, whatever else.
func marked(bits uint32) rulePart {
	return func(b *ruleBuilder) {
		mask := binary.NativeEndian.AppendUint32(nil, bits)
		b.exprs = append(b.exprs,
			&expr.Meta{Key: expr.MetaKeyMARK, Register: b.next},
			&expr.Bitwise{SourceRegister: b.next, DestRegister: b.next, Len: 4, Mask: mask, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.next, Data: mask},
		)
	}
}

func sourceNotIn(prefix string) rulePart { return within(prefix, source4, source6, expr.CmpOpNeq) }

func destinationNotIn(prefix string) rulePart {
	return within(prefix, destination4, destination6, expr.CmpOpNeq)
}

// masqueradeAtRandom is masquerade with a random source port: two connections
// that are made at once do not get the same one.
func masqueradeAtRandom() rulePart {
	return func(b *ruleBuilder) { b.exprs = append(b.exprs, &expr.Masq{FullyRandom: true}) }
}
