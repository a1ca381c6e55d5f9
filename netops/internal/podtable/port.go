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
func portRules(chain string) []nft.Rule {
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

// ofKind matches the protocol of a frame, or of that in its VLAN tag: unlike frameOf it looks behind one tag.
func ofKind(protocol uint16) nft.Part {
	return nft.CompareMeta(unix.NFT_META_PROTOCOL, unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, protocol))
}

// fromPortsRules lead on by the kind of a frame.
func fromPortsRules() []nft.Rule {
	const source = 6 // in the frame
	rules := []nft.Rule{
		renamedFrom(portLinks),
		nft.NewRule(nft.InputLink(), notIn(portLinks), nft.Accept()),
		takenMAC(nft.Together(), unix.NFT_PAYLOAD_LL_HEADER, source),
	}
	for _, protocol := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} { // a second tag, behind which no rule looks
		rules = append(rules, closing(wayTags, ofKind(protocol), nft.Drop()))
	}
	return append(rules,
		nft.NewRule(nft.InputLink(), in(egressPorts), nft.Jump(fromJailChain)),
		nft.NewRule(ofKind(unix.ETH_P_ARP), nft.Goto(fromARPChain)),
		nft.NewRule(ofKind(unix.ETH_P_IP), nft.Goto(fromIPChain+Suffix(false))),
		nft.NewRule(ofKind(unix.ETH_P_IPV6), nft.Goto(fromIPChain+Suffix(true))))
}

// takenMAC drops what has the MAC of a bridge or of another pod. Others pass: of a virtual machine behind the pod, or of one that the role
// tuning gave to the pod.
func takenMAC(match nft.Part, header, offset uint32) nft.Rule {
	mac := nft.Load(header, offset, nft.EtherAddr, 0)
	return closing(wayForgedMAC, match, mac, in(allMACs), nft.InputLink(), mac, notIn(portMACs), nft.Drop())
}

// fromJailRules drop what a pod that policies select for egress sends beside IP, also to the node.
func fromJailRules() (rules []nft.Rule) {
	for _, protocol := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		rules = append(rules, closing(wayFrames, frameOf(protocol), nft.Drop()))
	}
	for _, protocol := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IP, unix.ETH_P_IPV6} {
		rules = append(rules, nft.NewRule(frameOf(protocol), nft.Return()))
	}
	return append(rules, closing(wayFrames, nft.Drop()))
}

// The places of the sender's addresses in a message of ARP (RFC 826).
const (
	arpMAC, arpAddress = 8, 14
)

func fromARPRules() []nft.Rule {
	arp := ofKind(unix.ETH_P_ARP)
	return append([]nft.Rule{takenMAC(arp, unix.NFT_PAYLOAD_NETWORK_HEADER, arpMAC)},
		claimRules(wayForgedARP, false, arp, nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, arpAddress, nft.IP4Addr, 0), nft.Accept())...)
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
func targetRules() []nft.Rule {
	first := nft.Together(ofKind(unix.ETH_P_IPV6), hopLimit(unix.NFT_CMP_EQ, ndHopLimit))
	move := nft.Together(nft.Load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, targetOffset, nft.IP6Addr, 0), setSource6())
	return []nft.Rule{
		closing(wayForgedND, first, icmp6(neighbourAdvertisement, neighbourAdvertisement), move),
		closing(wayForgedND, first, address(true, true), nft.Is(make([]byte, targetSize)),
			icmp6(neighbourSolicitation, neighbourSolicitation), move, nft.Goto(fromDADChain)),
	}
}

// setSource6 writes a loaded address into the source of an IPv6 packet, and corrects the checksum of its payload.
func setSource6() nft.Part {
	return func(b *nft.Builder) {
		b.SetPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, source6Offset, targetSize, nft.FirstRegister, unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE,
			unix.NFTA_PAYLOAD_CSUM_OFFSET, 0, unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
		b.Next = nft.FirstRegister
	}
}

// fromDADRules judge the target of a solicitation that targetRules wrote into its source, and restore the source.
func fromDADRules() []nft.Rule {
	unspecified := func(b *nft.Builder) { b.Immediate(nft.FirstRegister, make([]byte, targetSize)) }
	return claimRules(wayForgedND, true, ofKind(unix.ETH_P_IPV6), address(true, true), nft.Together(unspecified, setSource6(), nft.Accept()))
}

// The types of messages by which routers tell hosts where to send (RFC 4861, section 4).
const routerAdvertisement, redirect = 134, 137

func fromIPRules(v6 bool) []nft.Rule {
	ip := ofKind(etherTypeOf(v6))
	notOfRouter := func(match nft.Part) nft.Rule {
		return closing(wayRouter, ip, match, nft.InputLink(), notIn(routerPorts), nft.Drop())
	}
	client, server := dhcpPorts(v6)
	rules := []nft.Rule{ // no socket's packet to itself leaves a pod, and a Service's address is another one
		closing(waySelf, ip, nft.InputLink(), address(v6, false), in(podSet(portSet, v6)), nft.Drop()),
		notOfRouter(datagram(server, client)),
	}
	if v6 {
		for _, message := range []byte{routerAdvertisement, redirect} {
			rules = append(rules, notOfRouter(icmp6(message, message)))
		}
		rules = append(rules, targetRules()...)
	}
	return append(rules, claimRules(wayForgedFrame, v6, ip, address(v6, true), nft.Accept())...)
}

// datagram matches UDP from one port to another.
func datagram(from, to uint16) nft.Part {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	return func(b *nft.Builder) {
		nft.OfProtocol(unix.IPPROTO_UDP)(b)
		b.Match(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, ports)
	}
}

// claimRules pass an address that a port may claim, and drop others: its own, the unspecified one, and a link-local one that is no other
// port's. Then those that its network allows, and any if its own ones are not known, unless another port has them or they are of another network of
// pods. Each rule matches the protocol: without it nft does not know the fields.
func claimRules(way string, v6 bool, match, load, pass nft.Part) []nft.Rule {
	rules := []nft.Rule{
		nft.NewRule(match, nft.InputLink(), load, in(podSet(portSet, v6)), pass),
		nft.NewRule(match, load, nft.Is(make([]byte, addressField(v6).Size())), pass),
		closing(way, match, load, in(podSet(bridgedSet, v6)), nft.Drop()),
	}
	if v6 {
		rules = append(rules, nft.NewRule(match, load, within(linkLocalNetwork()), pass))
	}
	return append(rules,
		nft.NewRule(match, nft.InputLink(), load, in(podSet(allowedSet, v6)), pass),
		closing(way, match, nft.InputLink(), load, in(podSet(refusedSet, v6)), denied()), // of the pods of another network or node
		nft.NewRule(match, nft.InputLink(), in(podSet(anyAddresses, v6)), pass),
		closing(way, denied()))
}
