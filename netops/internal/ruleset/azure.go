package ruleset

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
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
func macNATFeature() nft.Feature {
	table := bridgeTable()
	to := []nft.Field{nft.EtherAddr}
	uplinks := &nft.Set{Table: table, Name: "macnat_uplinks", Key: []nft.Field{nft.IfName}, Data: to}
	pods4 := &nft.Set{Table: table, Name: "macnat_pods4", Key: []nft.Field{nft.IfName, nft.IP4Addr}, Data: to}
	pods6 := &nft.Set{Table: table, Name: "macnat_pods6", Key: []nft.Field{nft.IfName, nft.IP6Addr}, Data: to}
	tunnel := &nft.Set{Table: table, Name: "macnat_tunnel", Key: []nft.Field{nft.IfName}, Data: to}
	host4 := &nft.Set{Table: table, Name: "macnat_host4", Key: []nft.Field{nft.IfPattern, nft.IP4Addr}, Data: to}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{uplinks, pods4, pods6, tunnel, host4},
		Chains: func() []nft.Chain {
			return []nft.Chain{
				{
					Name: "macnat_prerouting", Kind: "filter", Hook: bridgePrerouting, Priority: priorityBridgeFirst,
					Rules: []nft.Rule{
						nft.NewRule(etherType(unix.ETH_P_IP), nft.InputLink(), frameDestination4(), fromMap(host4), setDestinationMAC(), toHostItself(), nft.Return()),
						nft.NewRule(etherType(unix.ETH_P_IP), nft.InputLink(), frameDestination4(), fromMap(pods4), setDestinationMAC()),
						nft.NewRule(etherType(unix.ETH_P_IPV6), nft.InputLink(), frameDestination6(), fromMap(pods6), setDestinationMAC()),
						nft.NewRule(arp(arpReply), nft.InputLink(), targetIP(), fromMap(pods4), setNetwork(arpTarget)),
						nft.NewRule(etherType(unix.ETH_P_ARP), nft.InputLink(), targetIP(), fromMap(pods4), setDestinationMAC()),
						nft.NewRule(discovery(ndRouterSolicitation, ndRedirect), nft.Return()),
						nft.NewRule(etherType(unix.ETH_P_IP), forReceivers(expr.CmpOpEq), nft.InputLink(), fromMap(tunnel), setDestinationMAC()),
						nft.NewRule(etherType(unix.ETH_P_IPV6), forReceivers(expr.CmpOpEq), nft.InputLink(), fromMap(tunnel), setDestinationMAC()),
					},
				},
				{
					Name: "macnat_forward", Kind: "filter", Hook: bridgeForward, Priority: bridgeFilter,
					Rules: []nft.Rule{
						nft.NewRule(forReceivers(expr.CmpOpNeq), nft.InputLink(), fromMap(uplinks), isSet(), nft.OutputLink(), fromMap(uplinks), isSet(), nft.Drop()),
					},
				},
				{
					Name: "macnat_postrouting", Kind: "filter", Hook: bridgePostrouting, Priority: priorityBridgeSource,
					Rules: []nft.Rule{
						nft.NewRule(arp(arpRequest), nft.OutputLink(), targetIP(), fromMap(pods4), isSet(), nft.Drop()),
						nft.NewRule(etherType(unix.ETH_P_ARP), nft.OutputLink(), fromMap(uplinks), setNetwork(arpSender)),
						optionRule(uplinks, ndRouterSolicitation, 8, ndSourceOption),
						optionRule(uplinks, ndNeighbourSolicitation, 24, ndSourceOption),
						optionRule(uplinks, ndNeighbourAdvert, 24, ndTargetOption),
						nft.NewRule(nft.OutputLink(), fromMap(uplinks), setSourceMAC()),
					},
				},
			}
		},
	}
}

// optionRule translates the sender's MAC in the first option of a message of
// neighbour discovery, which begins at an offset.
func optionRule(uplinks *nft.Set, message byte, offset uint32, option byte) nft.Rule {
	return nft.NewRule(discovery(message, message), transportIs(offset, []byte{option, 1}),
		nft.OutputLink(), fromMap(uplinks), setTransport(offset+2))
}

// etherType is meta protocol: the bridge family has no other word for the layer above.
func etherType(kind uint16) nft.Part {
	return func(b *nft.Builder) {
		b.Exprs = append(b.Exprs,
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: b.Next},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: binary.BigEndian.AppendUint16(nil, kind)},
		)
	}
}

// frameDestination4 is ip daddr behind a match of the layer.
func frameDestination4() nft.Part { return nft.Load(expr.PayloadBaseNetworkHeader, 16, nft.IP4Addr, 0) }

func frameDestination6() nft.Part { return nft.Load(expr.PayloadBaseNetworkHeader, 24, nft.IP6Addr, 0) }

// targetIP is arp daddr ip.
func targetIP() nft.Part { return nft.Load(expr.PayloadBaseNetworkHeader, arpTargetIP, nft.IP4Addr, 0) }

// arp matches messages of one operation.
func arp(operation byte) nft.Part {
	return func(b *nft.Builder) {
		etherType(unix.ETH_P_ARP)(b)
		b.Match(expr.PayloadBaseNetworkHeader, arpOpOffset, []byte{0, operation})
	}
}

// discovery matches messages of neighbour discovery of a range of types.
func discovery(first, last byte) nft.Part {
	return func(b *nft.Builder) {
		etherType(unix.ETH_P_IPV6)(b)
		b.Exprs = append(b.Exprs,
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: b.Next},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: []byte{unix.IPPROTO_ICMPV6}},
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Len: 1, DestRegister: b.Next},
			&expr.Range{Op: expr.CmpOpEq, Register: b.Next, FromData: []byte{first}, ToData: []byte{last}},
		)
	}
}

// transportIs compares bytes behind the network's header.
func transportIs(offset uint32, want []byte) nft.Part {
	return func(b *nft.Builder) { b.Match(expr.PayloadBaseTransportHeader, offset, want) }
}

// forReceivers is for frames to one receiver, or with CmpOpNeq to many: broadcasts
// and multicasts have the first bit of a MAC that is sent set (IEEE 802.3).
func forReceivers(op expr.CmpOp) nft.Part {
	return func(b *nft.Builder) {
		b.Exprs = append(b.Exprs,
			&expr.Payload{Base: expr.PayloadBaseLLHeader, Len: 1, DestRegister: b.Next},
			&expr.Bitwise{SourceRegister: b.Next, DestRegister: b.Next, Len: 1, Mask: []byte{1}, Xor: []byte{0}},
			&expr.Cmp{Op: op, Register: b.Next, Data: []byte{0}},
		)
	}
}

// fromMap goes on with what a map has for what was loaded so far, if it has it.
func fromMap(set *nft.Set) nft.Part {
	return func(b *nft.Builder) {
		b.Exprs = append(b.Exprs, &expr.Lookup{
			SourceRegister: nft.FirstRegister, DestRegister: nft.FirstRegister, IsDestRegSet: true, SetName: set.Name,
		})
		b.Next = nft.FirstRegister
	}
}

// isSet compares what was mapped with nothing, for nft to show the lookup.
func isSet() nft.Part {
	return func(b *nft.Builder) {
		b.Exprs = append(b.Exprs, &expr.Cmp{Op: expr.CmpOpNeq, Register: nft.FirstRegister, Data: make([]byte, nft.EtherAddr.Size())})
	}
}

// setDestinationMAC is ether daddr set to what was mapped.
func setDestinationMAC() nft.Part { return setMAC(expr.PayloadBaseLLHeader, 0, expr.Payload{}) }

// setSourceMAC is ether saddr set.
func setSourceMAC() nft.Part { return setMAC(expr.PayloadBaseLLHeader, 6, expr.Payload{}) }

// setNetwork sets a MAC of the network layer, which has no checksum over it.
func setNetwork(offset uint32) nft.Part {
	return setMAC(expr.PayloadBaseNetworkHeader, offset, expr.Payload{})
}

// setTransport sets a MAC of ICMPv6, whose checksum is at 2 (RFC 4443 §2.1).
func setTransport(offset uint32) nft.Part {
	return setMAC(expr.PayloadBaseTransportHeader, offset, expr.Payload{CsumType: expr.CsumTypeInet, CsumOffset: 2})
}

func setMAC(base expr.PayloadBase, offset uint32, write expr.Payload) nft.Part {
	return func(b *nft.Builder) {
		write.OperationType, write.SourceRegister = expr.PayloadWrite, nft.FirstRegister
		write.Base, write.Offset, write.Len = base, offset, uint32(nft.EtherAddr.Size())
		b.Exprs = append(b.Exprs, &write)
	}
}

// toHostItself is meta pkttype set host: else the node drops a frame that was for another.
func toHostItself() nft.Part {
	return func(b *nft.Builder) {
		b.Exprs = append(b.Exprs,
			&expr.Immediate{Register: nft.FirstRegister, Data: []byte{unix.PACKET_HOST}},
			&expr.Meta{Key: expr.MetaKeyPKTTYPE, SourceRegister: true, Register: nft.FirstRegister},
		)
	}
}
