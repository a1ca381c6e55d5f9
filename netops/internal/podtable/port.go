package podtable

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// The chains of BridgeTable that check what the ports of pods send, before any program translates it. The first leads to one for each kind of
// frames:.
const (
	fromPortsChain = "from_ports"
	fromJailChain  = "from_jail"
	fromARPChain   = "from_arp"
	fromDADChain   = "from_dad"
	fromIPChain    = "from_ip"
	// bridgePreRouting is NF_BR_PRE_ROUTING. The priority is before NF_BR_PRI_NAT_DST_BRIDGED.
	bridgePreRouting = 0
	portsPriority    = -310
)

// portChains returns the chains.
func portChains() []nft.Chain {
	return []nft.Chain{
		{Name: fromJailChain},
		{Name: fromARPChain},
		{Name: fromDADChain},
		{Name: fromIPChain + Suffix(false)},
		{Name: fromIPChain + Suffix(true)},
		{Name: fromPortsChain, Kind: "filter", Hook: bridgePreRouting, Priority: portsPriority},
	}
}

// portRules returns the rules of one of them, or nil.
func portRules(chain string) []baseRule {
	switch chain {
	case fromPortsChain:
		return fromPortsRules()
	case fromJailChain:
		return fromJailRules()
	case fromARPChain:
		return fromARPRules()
	case fromDADChain:
		return fromDADRules()
	case fromIPChain + Suffix(false), fromIPChain + Suffix(true):
		return fromIPRules(chain == fromIPChain+Suffix(true))
	}
	return nil
}

func drop(e expressions) { e.Verdict(nft.VerdictDrop, "") }

// kind matches the protocol of a frame, or of that in its VLAN tag: unlike frameOf it looks behind one tag.
func (e expressions) kind(protocol uint16) {
	e.Meta(unix.NFT_META_PROTOCOL, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(nil, protocol))
}

// ofPort looks up a port with what load loads. With invert it matches if the port does not have it.
func (e expressions) ofPort(set string, invert bool, load func(to uint32)) {
	e.Meta(unix.NFT_META_IIFNAME, register)
	load(register + unix.IFNAMSIZ/4)
	e.Lookup(set, invert)
}

func (e expressions) inSet(set string, load func(to uint32)) {
	load(register)
	e.Lookup(set, false)
}

// fromPortsRules lead on by the kind of a frame.
func fromPortsRules() (rules []baseRule) {
	leads := func(match func(expressions), verdict int32, chain string) {
		rules = append(rules, baseRule{fill: func(e expressions) { match(e); e.Verdict(verdict, chain) }})
	}
	port := func(set string, invert bool) func(expressions) {
		return func(e expressions) { e.Meta(unix.NFT_META_IIFNAME, register); e.Lookup(set, invert) }
	}
	kind := func(protocol uint16) func(expressions) { return func(e expressions) { e.kind(protocol) } }
	rules = append(rules, renamedFrom(portLinks))
	leads(port(portLinks, true), nft.VerdictAccept, "")
	const source = 6 // in the frame
	rules = append(rules, takenMAC(func(expressions) {}, unix.NFT_PAYLOAD_LL_HEADER, source))
	for _, protocol := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} { // a second tag, behind which no rule looks
		rules = append(rules, closing(wayTags, func(e expressions) { e.kind(protocol); drop(e) }))
	}
	leads(port(egressPorts, false), unix.NFT_JUMP, fromJailChain)
	leads(kind(unix.ETH_P_ARP), unix.NFT_GOTO, fromARPChain)
	leads(kind(unix.ETH_P_IP), unix.NFT_GOTO, fromIPChain+Suffix(false))
	leads(kind(unix.ETH_P_IPV6), unix.NFT_GOTO, fromIPChain+Suffix(true))
	return rules
}

// takenMAC drops what has the MAC of a bridge or of another pod. Others pass: of a virtual machine behind the pod, or of one that the role
// tuning gave to the pod.
func takenMAC(match func(expressions), header, offset uint32) baseRule {
	const size = 6
	return closing(wayForgedMAC, func(e expressions) {
		match(e)
		load := func(to uint32) { e.Payload(header, offset, size, to) }
		e.inSet(allMACs, load)
		e.ofPort(portMACs, true, load)
		drop(e)
	})
}

// fromJailRules drop what a pod that policies select for egress sends beside IP, also to the node.
func fromJailRules() (rules []baseRule) {
	for _, protocol := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		rules = append(rules, closing(wayFrames, func(e expressions) { e.frameOf(protocol); drop(e) }))
	}
	for _, protocol := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IP, unix.ETH_P_IPV6} {
		rules = append(rules, baseRule{fill: func(e expressions) { e.frameOf(protocol); e.Verdict(unix.NFT_RETURN, "") }})
	}
	return append(rules, closing(wayFrames, drop))
}

// The places of the sender's addresses in a message of ARP (RFC 826).
const (
	arpMAC, arpAddress = 8, 14
)

func fromARPRules() []baseRule {
	arp := func(e expressions) { e.kind(unix.ETH_P_ARP) }
	return append([]baseRule{takenMAC(arp, unix.NFT_PAYLOAD_NETWORK_HEADER, arpMAC)}, claimRules(wayForgedARP, false, arp, func(e expressions, to uint32) {
		e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, arpAddress, 4, to)
	}, accept)...)
}

// The messages of neighbour discovery that claim an address, the target in them, and its place (RFC 4861, sections 4.3 and 4.4).
const (
	neighbourSolicitation, neighbourAdvertisement = 135, 136
	targetOffset, targetSize                      = 8, 16
)

// source6Offset is the place of the source in the header of IPv6.
const source6Offset = 8

// targetRules write the address that a message of neighbour discovery claims into the packet's source, so the rules for sources judge it. nft cannot
// load a lookup of the target itself. An advertisement's source has no other use. A solicitation claims its target if its source is unspecified.
// The hop limit comes first: by it nft finds the messages behind a VLAN tag, too, after it has loaded a saved table.
func targetRules() []baseRule {
	message := func(e expressions, kind byte) {
		e.kind(unix.ETH_P_IPV6)
		e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, hopLimitOffset, 1, register)
		e.Compare(unix.NFT_CMP_EQ, register, []byte{ndHopLimit})
		if kind == neighbourSolicitation {
			e.address(true, true, register)
			e.Compare(unix.NFT_CMP_EQ, register, make([]byte, targetSize))
		}
		e.icmp6(kind, kind)
		e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, targetOffset, targetSize, register)
		e.setSource6()
	}
	return []baseRule{
		closing(wayForgedND, func(e expressions) { message(e, neighbourAdvertisement) }),
		closing(wayForgedND, func(e expressions) { message(e, neighbourSolicitation); e.Verdict(unix.NFT_GOTO, fromDADChain) }),
	}
}

// setSource6 writes a loaded address into the source of an IPv6 packet, and corrects the checksum of its payload.
func (e expressions) setSource6() {
	e.SetPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, source6Offset, targetSize, register, unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE,
		unix.NFTA_PAYLOAD_CSUM_OFFSET, 0, unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
}

// fromDADRules judge the target of a solicitation that targetRules wrote into its source, and restore the source.
func fromDADRules() []baseRule {
	ip := func(e expressions) { e.kind(unix.ETH_P_IPV6) }
	return claimRules(wayForgedND, true, ip, func(e expressions, to uint32) { e.address(true, true, to) }, func(e expressions) {
		e.Immediate(register, make([]byte, targetSize))
		e.setSource6()
		accept(e)
	})
}

// The types of messages by which routers tell hosts where to send (RFC 4861, section 4).
const routerAdvertisement, redirect = 134, 137

func fromIPRules(v6 bool) (rules []baseRule) {
	ip := func(e expressions) { e.kind(etherTypeOf(v6)) }
	rules = append(rules, closing(waySelf, func(e expressions) { // no socket's packet to itself leaves a pod, and a Service's address is another one
		ip(e)
		e.ofPort(podSet(portSet, v6), false, func(to uint32) { e.address(v6, false, to) })
		drop(e)
	}))
	notOfRouter := func(match func(expressions)) {
		rules = append(rules, closing(wayRouter, func(e expressions) {
			ip(e)
			match(e)
			e.Meta(unix.NFT_META_IIFNAME, register)
			e.Lookup(routerPorts, true)
			drop(e)
		}))
	}
	client, server := dhcpPorts(v6)
	notOfRouter(func(e expressions) { e.datagram(server, client) })
	if v6 {
		for _, message := range []byte{routerAdvertisement, redirect} {
			notOfRouter(func(e expressions) { e.icmp6(message, message) })
		}
		rules = append(rules, targetRules()...)
	}
	return append(rules, claimRules(wayForgedFrame, v6, ip, func(e expressions, to uint32) { e.address(v6, true, to) }, accept)...)
}

// datagram matches UDP from one port to another.
func (e expressions) datagram(from, to uint16) {
	e.protocol(unix.IPPROTO_UDP)
	e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to))
}

// claimRules pass an address that a port may claim, and drop others: its own, the unspecified one, and a link-local one that is no other
// port's. Then those that its network allows, and any if its own ones are not known, unless another port has them or they are of another network of
// pods. Each rule matches the protocol: without it nft does not know the fields.
func claimRules(way string, v6 bool, match func(expressions), load func(e expressions, to uint32), pass func(expressions)) (rules []baseRule) {
	add := func(fill func(expressions)) {
		rules = append(rules, baseRule{fill: func(e expressions) { match(e); fill(e); pass(e) }})
	}
	size := addressField(v6).Size()
	add(func(e expressions) { e.ofPort(podSet(portSet, v6), false, func(to uint32) { load(e, to) }) })
	add(func(e expressions) { load(e, register); e.Compare(unix.NFT_CMP_EQ, register, make([]byte, size)) })
	rules = append(rules, closing(way, func(e expressions) {
		match(e)
		e.inSet(podSet(bridgedSet, v6), func(to uint32) { load(e, to) })
		drop(e)
	}))
	if v6 {
		add(func(e expressions) { load(e, register); e.network(linkLocalNetwork()) })
	}
	add(func(e expressions) { e.ofPort(podSet(allowedSet, v6), false, func(to uint32) { load(e, to) }) })
	rules = append(rules, closing(way, func(e expressions) { // of the pods of another network or node
		match(e)
		e.ofPort(podSet(refusedSet, v6), false, func(to uint32) { load(e, to) })
		e.Counter()
		drop(e)
	}))
	add(func(e expressions) {
		e.Meta(unix.NFT_META_IIFNAME, register)
		e.Lookup(podSet(anyAddresses, v6), false)
	})
	return append(rules, closing(way, func(e expressions) { e.Counter(); drop(e) }))
}
