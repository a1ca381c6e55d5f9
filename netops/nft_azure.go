package netops

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// bridgeForward is NF_BR_FORWARD of linux/netfilter_bridge.h, bridgeFilter
	// NF_BR_PRI_FILTER_BRIDGED.
	bridgeForward = 2
	bridgeFilter  = -200
	// bridgePostrouting is NF_BR_POST_ROUTING of linux/netfilter_bridge.h.
	bridgePostrouting = 4
	// priorityBridgeSource is NF_BR_PRI_NAT_SRC of linux/netfilter_bridge.h.
	priorityBridgeSource = 300
)

// Of ARP (RFC 826): requests and replies; and where a message for IPv4 over
// Ethernet has its sender's MAC, its target's MAC and its target's address.
const (
	arpRequest  = 1
	arpReply    = 2
	arpOpOffset = 6
	arpSender   = 8
	arpTarget   = 18
	arpTargetIP = 24
)

// Of neighbour discovery (RFC 4861): types of messages, and types of the options
// that hold their sender's MAC.
const (
	ndRouterSolicitation    = 133
	ndNeighbourSolicitation = 135
	ndNeighbourAdvert       = 136
	ndRedirect              = 137
	ndSourceOption          = 1
	ndTargetOption          = 2
)

// macNATFeature is for bridges whose uplink takes frames with its own MAC only, as
// the networks of clouds do. An uplink and its bridge are the node's.
//
//   - macnat_uplinks has an uplink's MAC: what leaves by it has that for its source,
//     in the frame, in ARP's sender and in the options of neighbour discovery. What
//     comes in by it for many receivers does not go back, hairpin or not: it would
//     tell that others' addresses are the node's.
//   - macnat_pods4 and macnat_pods6 map (uplink, pod's address) to the pod's MAC: what
//     comes in by the uplink for the address goes to the pod, ARP included. A request
//     for it is asked of the pod alone, which answers with the uplink's MAC. Requests
//     for it do not leave by the uplink, which has no answer but the pod's own.
//   - macnat_tunnel maps a bridge port to the MAC that all IP frames for one receiver
//     go to that come in by it, so that also those for the same node leave by the
//     uplink and come back. ARP and neighbour discovery stay as they are.
//   - macnat_host4 maps (bridge port or a pattern of those, address) to the bridge's
//     MAC: what comes in by the port for the address is handed to the node itself.
//
// The bridge family of 6.1 and later has maps, yet no name of the bridge where the
// kernel lacks nft_meta_bridge, hence keys are ports.
func macNATFeature() nftFeature {
	table := bridgeTable()
	to := []field{etherAddr}
	uplinks := &nftSet{table: table, name: "macnat_uplinks", key: []field{ifName}, data: to}
	pods4 := &nftSet{table: table, name: "macnat_pods4", key: []field{ifName, ip4Addr}, data: to}
	pods6 := &nftSet{table: table, name: "macnat_pods6", key: []field{ifName, ip6Addr}, data: to}
	tunnel := &nftSet{table: table, name: "macnat_tunnel", key: []field{ifName}, data: to}
	host4 := &nftSet{table: table, name: "macnat_host4", key: []field{ifPattern, ip4Addr}, data: to}
	return nftFeature{
		table: table,
		sets:  []*nftSet{uplinks, pods4, pods6, tunnel, host4},
		chains: func() []nftChain {
			return []nftChain{
				{
					name: "macnat_prerouting", kind: "filter", hook: bridgePrerouting, priority: priorityBridgeFirst,
					rules: []nftRule{
						rule(etherType(unix.ETH_P_IP), inputLink(), frameDestination4(), fromMap(host4), setDestinationMAC(), toHostItself(), returns()),
						rule(etherType(unix.ETH_P_IP), inputLink(), frameDestination4(), fromMap(pods4), setDestinationMAC()),
						rule(etherType(unix.ETH_P_IPV6), inputLink(), frameDestination6(), fromMap(pods6), setDestinationMAC()),
						rule(arp(arpReply), inputLink(), targetIP(), fromMap(pods4), setNetwork(arpTarget)),
						rule(etherType(unix.ETH_P_ARP), inputLink(), targetIP(), fromMap(pods4), setDestinationMAC()),
						rule(discovery(ndRouterSolicitation, ndRedirect), returns()),
						rule(etherType(unix.ETH_P_IP), forReceivers(expr.CmpOpEq), inputLink(), fromMap(tunnel), setDestinationMAC()),
						rule(etherType(unix.ETH_P_IPV6), forReceivers(expr.CmpOpEq), inputLink(), fromMap(tunnel), setDestinationMAC()),
					},
				},
				{
					name: "macnat_forward", kind: "filter", hook: bridgeForward, priority: bridgeFilter,
					rules: []nftRule{
						rule(forReceivers(expr.CmpOpNeq), inputLink(), fromMap(uplinks), isSet(), outputLink(), fromMap(uplinks), isSet(), drops()),
					},
				},
				{
					name: "macnat_postrouting", kind: "filter", hook: bridgePostrouting, priority: priorityBridgeSource,
					rules: []nftRule{
						rule(arp(arpRequest), outputLink(), targetIP(), fromMap(pods4), isSet(), drops()),
						rule(etherType(unix.ETH_P_ARP), outputLink(), fromMap(uplinks), setNetwork(arpSender)),
						optionRule(uplinks, ndRouterSolicitation, 8, ndSourceOption),
						optionRule(uplinks, ndNeighbourSolicitation, 24, ndSourceOption),
						optionRule(uplinks, ndNeighbourAdvert, 24, ndTargetOption),
						rule(outputLink(), fromMap(uplinks), setSourceMAC()),
					},
				},
			}
		},
	}
}

// optionRule translates the sender's MAC in the first option of a message of
// neighbour discovery, which begins at an offset.
func optionRule(uplinks *nftSet, message byte, offset uint32, option byte) nftRule {
	return rule(discovery(message, message), transportIs(offset, []byte{option, 1}),
		outputLink(), fromMap(uplinks), setTransport(offset+2))
}

// etherType is meta protocol: the bridge family has no other word for the layer above.
func etherType(kind uint16) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs,
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: b.next},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.next, Data: binary.BigEndian.AppendUint16(nil, kind)},
		)
	}
}

// frameDestination4 is ip daddr behind a match of the layer.
func frameDestination4() rulePart { return load(expr.PayloadBaseNetworkHeader, 16, ip4Addr, 0) }

func frameDestination6() rulePart { return load(expr.PayloadBaseNetworkHeader, 24, ip6Addr, 0) }

// targetIP is arp daddr ip.
func targetIP() rulePart { return load(expr.PayloadBaseNetworkHeader, arpTargetIP, ip4Addr, 0) }

// arp matches messages of one operation.
func arp(operation byte) rulePart {
	return func(b *ruleBuilder) {
		etherType(unix.ETH_P_ARP)(b)
		b.match(expr.PayloadBaseNetworkHeader, arpOpOffset, []byte{0, operation})
	}
}

// discovery matches messages of neighbour discovery of a range of types.
func discovery(first, last byte) rulePart {
	return func(b *ruleBuilder) {
		etherType(unix.ETH_P_IPV6)(b)
		b.exprs = append(b.exprs,
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: b.next},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.next, Data: []byte{unix.IPPROTO_ICMPV6}},
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Len: 1, DestRegister: b.next},
			&expr.Range{Op: expr.CmpOpEq, Register: b.next, FromData: []byte{first}, ToData: []byte{last}},
		)
	}
}

// transportIs compares bytes behind the network's header.
func transportIs(offset uint32, want []byte) rulePart {
	return func(b *ruleBuilder) { b.match(expr.PayloadBaseTransportHeader, offset, want) }
}

// forReceivers is for frames to one receiver, or with CmpOpNeq to many: broadcasts
// and multicasts have the first bit of a MAC that is sent set (IEEE 802.3).
func forReceivers(op expr.CmpOp) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs,
			&expr.Payload{Base: expr.PayloadBaseLLHeader, Len: 1, DestRegister: b.next},
			&expr.Bitwise{SourceRegister: b.next, DestRegister: b.next, Len: 1, Mask: []byte{1}, Xor: []byte{0}},
			&expr.Cmp{Op: op, Register: b.next, Data: []byte{0}},
		)
	}
}

// match compares bytes of a packet.
func (b *ruleBuilder) match(base expr.PayloadBase, offset uint32, want []byte) {
	b.exprs = append(b.exprs,
		&expr.Payload{Base: base, Offset: offset, Len: uint32(len(want)), DestRegister: b.next},
		&expr.Cmp{Op: expr.CmpOpEq, Register: b.next, Data: want},
	)
}

// fromMap goes on with what a map has for what was loaded so far, if it has it.
func fromMap(set *nftSet) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Lookup{
			SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set.name,
		})
		b.next = firstRegister
	}
}

// isSet compares what was mapped with nothing, for nft to show the lookup.
func isSet() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, etherAddr.size())})
	}
}

// setDestinationMAC is ether daddr set to what was mapped.
func setDestinationMAC() rulePart { return setMAC(expr.PayloadBaseLLHeader, 0, expr.Payload{}) }

// setSourceMAC is ether saddr set.
func setSourceMAC() rulePart { return setMAC(expr.PayloadBaseLLHeader, 6, expr.Payload{}) }

// setNetwork sets a MAC of the network layer, which has no checksum over it.
func setNetwork(offset uint32) rulePart {
	return setMAC(expr.PayloadBaseNetworkHeader, offset, expr.Payload{})
}

// setTransport sets a MAC of ICMPv6, whose checksum is at 2 (RFC 4443 §2.1).
func setTransport(offset uint32) rulePart {
	return setMAC(expr.PayloadBaseTransportHeader, offset, expr.Payload{CsumType: expr.CsumTypeInet, CsumOffset: 2})
}

func setMAC(base expr.PayloadBase, offset uint32, write expr.Payload) rulePart {
	return func(b *ruleBuilder) {
		write.OperationType, write.SourceRegister = expr.PayloadWrite, firstRegister
		write.Base, write.Offset, write.Len = base, offset, uint32(etherAddr.size())
		b.exprs = append(b.exprs, &write)
	}
}

// toHostItself is meta pkttype set host: else the node drops a frame that was for another.
func toHostItself() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs,
			&expr.Immediate{Register: firstRegister, Data: []byte{unix.PACKET_HOST}},
			&expr.Meta{Key: expr.MetaKeyPKTTYPE, SourceRegister: true, Register: firstRegister},
		)
	}
}
