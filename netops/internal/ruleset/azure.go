package ruleset

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// bridgeForward is NF_BR_FORWARD of linux/netfilter_bridge.h, and
	// bridgeFilter is NF_BR_PRI_FILTER_BRIDGED.
	bridgeForward = 2
	bridgeFilter  = -200
	// bridgePostrouting is NF_BR_POST_ROUTING of linux/netfilter_bridge.h.
	bridgePostrouting = 4
	// priorityBridgeSource is NF_BR_PRI_NAT_SRC of linux/netfilter_bridge.h.
	priorityBridgeSource = 300
)

// Constants of ARP (RFC 826): the operations, and the offsets of the operation,
// the sender's MAC, the target's MAC and the target's address in a message for
// IPv4 over Ethernet.
const (
	arpRequest  = 1
	arpReply    = 2
	arpOpOffset = 6
	arpSender   = 8
	arpTarget   = 18
	arpTargetIP = 24
)

// Constants of neighbour discovery (RFC 4861): message types, and the types of
// the options that hold the sender's MAC.
const (
	ndRouterSolicitation    = 133
	ndNeighbourSolicitation = 135
	ndNeighbourAdvert       = 136
	ndRedirect              = 137
	ndSourceOption          = 1
	ndTargetOption          = 2
)

// macNATFeature serves bridges whose uplink accepts only frames with its own MAC,
// as in cloud networks. The uplink and its bridge belong to the node.
//
//   - macnat_uplinks maps an uplink to its MAC. Frames that leave by the uplink
//     get this MAC as their source: in the Ethernet header, in ARP's sender and
//     in the options of neighbour discovery. A broadcast or multicast frame that
//     arrived at the uplink does not leave by it again, even in hairpin mode: it
//     would announce other hosts' addresses with the node's MAC.
//   - macnat_pods4 and macnat_pods6 map (uplink, pod's address) to the pod's MAC.
//     Frames that arrive at the uplink for the address go to the pod, ARP
//     included. An ARP request for the address reaches only the pod, and the
//     answer has the uplink's MAC. An ARP request for the address does not leave
//     by the uplink, because only the pod can answer it.
//   - macnat_tunnel maps a bridge port to a MAC. All unicast IP frames that
//     arrive at the port go to this MAC, so that frames for the same node also
//     leave by the uplink and come back. ARP and neighbour discovery are
//     unchanged.
//
// The keys are ports, because a kernel without nft_meta_bridge cannot match the
// name of the bridge.
func macNATFeature() nft.Feature {
	table := bridgeTable()
	to := []nft.Field{nft.EtherAddr}
	uplinks := &nft.Set{Table: table, Name: "macnat_uplinks", Key: []nft.Field{nft.IfName}, Data: to}
	pods4 := &nft.Set{Table: table, Name: "macnat_pods4", Key: []nft.Field{nft.IfName, nft.IP4Addr}, Data: to}
	pods6 := &nft.Set{Table: table, Name: "macnat_pods6", Key: []nft.Field{nft.IfName, nft.IP6Addr}, Data: to}
	tunnel := &nft.Set{Table: table, Name: "macnat_tunnel", Key: []nft.Field{nft.IfName}, Data: to}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{uplinks, pods4, pods6, tunnel},
		Chains: func() []nft.Chain {
			return []nft.Chain{
				{
					Name: "macnat_prerouting", Kind: "filter", Hook: bridgePrerouting, Priority: priorityBridgeFirst,
					Rules: []nft.Rule{
						nft.NewRule(etherType(unix.ETH_P_IP), nft.InputLink(), frameDestination4(), fromMap(pods4), setDestinationMAC()),
						nft.NewRule(etherType(unix.ETH_P_IPV6), nft.InputLink(), frameDestination6(), fromMap(pods6), setDestinationMAC()),
						nft.NewRule(arp(arpReply), nft.InputLink(), targetIP(), fromMap(pods4), setNetwork(arpTarget)),
						nft.NewRule(etherType(unix.ETH_P_ARP), nft.InputLink(), targetIP(), fromMap(pods4), setDestinationMAC()),
						nft.NewRule(discovery(ndRouterSolicitation, ndRedirect), nft.Return()),
						nft.NewRule(etherType(unix.ETH_P_IP), forReceivers(unix.NFT_CMP_EQ), nft.InputLink(), fromMap(tunnel), setDestinationMAC()),
						nft.NewRule(etherType(unix.ETH_P_IPV6), forReceivers(unix.NFT_CMP_EQ), nft.InputLink(), fromMap(tunnel), setDestinationMAC()),
					},
				},
				{
					Name: "macnat_forward", Kind: "filter", Hook: bridgeForward, Priority: bridgeFilter,
					Rules: []nft.Rule{
						nft.NewRule(forReceivers(unix.NFT_CMP_NEQ), nft.InputLink(), fromMap(uplinks), isSet(), nft.OutputLink(), fromMap(uplinks), isSet(), nft.Drop()),
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

// macNATHostFeature delivers frames of pods to the node itself. macnat_node4 maps
// an address to the bridge's MAC. The rule applies to bridge ports whose name
// begins with "azv". It runs after those of macNATFeature and replaces their MAC.
func macNATHostFeature() nft.Feature {
	table := bridgeTable()
	node4 := &nft.Set{Table: table, Name: "macnat_node4", Key: []nft.Field{nft.IP4Addr}, Data: []nft.Field{nft.EtherAddr}}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{node4},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: "macnat_node", Kind: "filter", Hook: bridgePrerouting, Priority: priorityBridgeFirst + 1,
				Rules: []nft.Rule{
					nft.NewRule(etherType(unix.ETH_P_IP), nft.InputBegins("azv"), frameDestination4(), fromMap(node4), setDestinationMAC(), toHostItself()),
				},
			}}
		},
	}
}

// optionRule returns a rule that replaces the sender's MAC in the first option of
// a neighbour discovery message. The option begins at an offset of the ICMPv6
// header.
func optionRule(uplinks *nft.Set, message byte, offset uint32, option byte) nft.Rule {
	return nft.NewRule(discovery(message, message), transportIs(offset, []byte{option, 1}),
		nft.OutputLink(), fromMap(uplinks), setTransport(offset+2))
}

// etherType matches the network protocol (meta protocol). The bridge family has
// no other expression for it.
func etherType(kind uint16) nft.Part {
	return nft.CompareMeta(unix.NFT_META_PROTOCOL, unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, kind))
}

// frameDestination4 loads ip daddr. The rule must match the protocol before it.
func frameDestination4() nft.Part {
	return nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, nft.IP4Addr, 0)
}

func frameDestination6() nft.Part {
	return nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, nft.IP6Addr, 0)
}

// targetIP loads arp daddr ip.
func targetIP() nft.Part {
	return nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, arpTargetIP, nft.IP4Addr, 0)
}

// arp matches ARP messages of one operation.
func arp(operation byte) nft.Part {
	return func(b *nft.Builder) {
		etherType(unix.ETH_P_ARP)(b)
		b.Match(unix.NFT_PAYLOAD_NETWORK_HEADER, arpOpOffset, []byte{0, operation})
	}
}

// discovery matches neighbour discovery messages of a range of types.
func discovery(first, last byte) nft.Part {
	return func(b *nft.Builder) {
		etherType(unix.ETH_P_IPV6)(b)
		nft.OfProtocol(unix.IPPROTO_ICMPV6)(b)
		b.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, b.Next)
		b.Range(b.Next, []byte{first}, []byte{last})
	}
}

// transportIs compares the bytes at an offset of the transport header with want.
func transportIs(offset uint32, want []byte) nft.Part {
	return func(b *nft.Builder) { b.Match(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, want) }
}

// forReceivers matches unicast frames, or with NFT_CMP_NEQ broadcast and multicast
// frames. In a broadcast or multicast MAC the lowest bit of the first byte is set
// (IEEE 802.3).
func forReceivers(op uint32) nft.Part {
	return func(b *nft.Builder) {
		b.Payload(unix.NFT_PAYLOAD_LL_HEADER, 0, 1, b.Next)
		b.Mask(b.Next, []byte{1}, nil)
		b.Compare(op, b.Next, []byte{0})
	}
}

// fromMap looks up the loaded key in a map and loads the value. The rule does not
// match if the map has no such key.
func fromMap(set *nft.Set) nft.Part {
	return func(b *nft.Builder) {
		b.LookupInto(set.Name, nft.FirstRegister)
		b.Next = nft.FirstRegister
	}
}

// isSet compares the value of a map with zero. Without this comparison nft does
// not show the lookup.
func isSet() nft.Part {
	return func(b *nft.Builder) {
		b.Compare(unix.NFT_CMP_NEQ, nft.FirstRegister, make([]byte, nft.EtherAddr.Size()))
	}
}

// setDestinationMAC sets ether daddr to the value of a map.
func setDestinationMAC() nft.Part { return setMAC(unix.NFT_PAYLOAD_LL_HEADER, 0) }

// setSourceMAC sets ether saddr to the value of a map.
func setSourceMAC() nft.Part { return setMAC(unix.NFT_PAYLOAD_LL_HEADER, 6) }

// setNetwork sets a MAC in the network header. ARP has no checksum.
func setNetwork(offset uint32) nft.Part { return setMAC(unix.NFT_PAYLOAD_NETWORK_HEADER, offset) }

// setTransport sets a MAC in an ICMPv6 message. The checksum is at offset 2 (RFC
// 4443 §2.1).
func setTransport(offset uint32) nft.Part {
	return setMAC(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET, unix.NFTA_PAYLOAD_CSUM_OFFSET, 2)
}

func setMAC(base, offset uint32, checksum ...uint32) nft.Part {
	return func(b *nft.Builder) {
		b.SetPayload(base, offset, uint32(nft.EtherAddr.Size()), nft.FirstRegister, checksum...)
	}
}

// toHostItself sets the packet type to host (meta pkttype). Without it the node
// drops a frame that was sent to another MAC.
func toHostItself() nft.Part {
	return func(b *nft.Builder) {
		b.Immediate(nft.FirstRegister, []byte{unix.PACKET_HOST})
		b.SetMeta(unix.NFT_META_PKTTYPE, nft.FirstRegister)
	}
}
