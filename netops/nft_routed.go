package netops

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// RoutedMark is the bit of a packet's and of a connection's mark that has what
	// several NICs carry leave by the node's first one. It is the bit of AWS's CNI;
	// kube-proxy's are 0x4000 and 0x8000.
	RoutedMark = 1 << routedMarkBit

	// UplinkSet is the set of the first NICs of several.
	UplinkSet = "routed_uplink"

	routedMarkBit = 7
	// priorityMangle is NF_IP_PRI_MANGLE of linux/netfilter_ipv4.h: connections are
	// tracked by then, and destinations not translated yet.
	priorityMangle = -150
	// priorityTranslated is after priorityDestinationNAT.
	priorityTranslated = -90
)

// routedFeature is for pods that are routed with addresses of the cloud's own
// network. Of a family, 4 or 6, keys are the host's end of pods, or a pattern of
// those, and a prefix:
//
//   - routed4 holds what is hidden behind the node beyond routed_near4: sources.
//   - routed_near4 holds what is reached with the pods' own addresses: destinations.
//   - routed_out4 holds sources whose connections beyond routed_near4 leave by the
//     node's first NIC, where several are in use: only that one's address is the
//     node's. Packets get RoutedMark, by which a rule leads them to the main table.
//
// routed_uplink holds the first NIC where several are in use: connections that come
// in by it to the node are answered by it, whichever NIC the pod's address is of that
// they are led to. Destinations are judged before they are translated there (a service's
// port of the node may be no business of connection tracking's, as with IPVS), and
// after that for what pods send: a service's address is none of the cloud's network.
func routedFeature() nftFeature {
	table := inetTable()
	set := func(name string, key ...field) *nftSet { return &nftSet{table: table, name: name, key: key} }
	from4, from6 := set("routed4", ifPattern, ip4Prefix), set("routed6", ifPattern, ip6Prefix)
	near4, near6 := set("routed_near4", ifPattern, ip4Prefix), set("routed_near6", ifPattern, ip6Prefix)
	out4, out6 := set("routed_out4", ifPattern, ip4Prefix), set("routed_out6", ifPattern, ip6Prefix)
	uplink := set(UplinkSet, ifName)
	return nftFeature{
		table: table,
		sets:  []*nftSet{from4, from6, near4, near6, out4, out6, uplink},
		chains: func() []nftChain {
			isNew := tracked(expr.CtKeySTATE, expr.CtStateBitNEW)
			return []nftChain{
				{
					name: "routed_incoming", kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: priorityMangle,
					rules: []nftRule{
						rule(isNew, inputLink(), in(uplink), toThisNode(), setConnectionMarkBit(routedMarkBit)),
					},
				},
				{
					name: "routed_outgoing", kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: priorityTranslated,
					rules: []nftRule{
						rule(tracked(expr.CtKeyMARK, RoutedMark), setMarkBit(routedMarkBit)),
						rule(isNew, destinationIn("224.0.0.0/4"), returns()),
						rule(isNew, inputLink(), destination4(), in(near4), returns()),
						rule(isNew, inputLink(), source4(), in(out4), setConnectionMarkBit(routedMarkBit), setMarkBit(routedMarkBit)),
						rule(isNew, destinationIn("ff00::/8"), returns()),
						rule(isNew, inputLink(), destination6(), in(near6), returns()),
						rule(isNew, inputLink(), source6(), in(out6), setConnectionMarkBit(routedMarkBit), setMarkBit(routedMarkBit)),
					},
				},
				{
					name: "routed_postrouting", kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: prioritySourceNAT,
					rules: []nftRule{
						rule(destinationIn("224.0.0.0/4"), returns()),
						rule(inputLink(), destination4(), in(near4), returns()),
						rule(inputLink(), source4(), in(from4), masqueradeRandomly()),
						rule(destinationIn("ff00::/8"), returns()),
						rule(inputLink(), destination6(), in(near6), returns()),
						rule(inputLink(), source6(), in(from6), masqueradeRandomly()),
					},
				},
			}
		},
	}
}

// setConnectionMarkBit sets one bit of the connection's mark and keeps the others.
func setConnectionMarkBit(bit int) rulePart {
	return func(b *ruleBuilder) {
		mask := binary.NativeEndian.AppendUint32(nil, ^uint32(0)^1<<bit)
		xor := binary.NativeEndian.AppendUint32(nil, 1<<bit)
		b.exprs = append(b.exprs,
			&expr.Ct{Key: expr.CtKeyMARK, Register: b.next},
			&expr.Bitwise{SourceRegister: b.next, DestRegister: b.next, Len: 4, Mask: mask, Xor: xor},
			&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: b.next},
		)
	}
}

// masqueradeRandomly is masquerade with ports at random: of many connections that
// begin at once fewer want one port (nft's fully-random).
func masqueradeRandomly() rulePart {
	return func(b *ruleBuilder) { b.exprs = append(b.exprs, &expr.Masq{FullyRandom: true}) }
}
