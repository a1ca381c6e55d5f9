package podtable

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The chains of BridgeTable.
const (
	framesChain  = "frames"
	toPodChain   = "to_pod"
	fromPodChain = "from_pod"
)

// The sets of BridgeTable, and the set of Table that has bridges. Those of addresses get the family's suffix.
const (
	egressPorts  = PodSets + "ports_" + egressChain
	ingressPorts = PodSets + "ports_" + ingressChain
	dhcpSet      = PodSets + "dhcp4"
)

// bridgePriority is NF_BR_PRI_FILTER_BRIDGED, which is before br_netfilter.
const bridgePriority = -200

// bridgeForward is NF_BR_FORWARD.
const bridgeForward = 2

// portElements returns the elements of an address of a pod that policies select and that is on a bridge's port.
func portElements(a netip.Addr, p *Pod) (all []*nft.Element) {
	for set, chain := range map[string]string{egressPorts: p.Egress, ingressPorts: p.Ingress} {
		if chain != "" {
			all = append(all, &nft.Element{Set: set, Key: []string{p.Port}, Label: p.Label})
		}
	}
	if a.Is4() {
		all = append(all, &nft.Element{Set: dhcpSet, Key: []string{p.Bridge, p.Bridge, a.String()}, Label: p.Label})
	}
	return all
}

// BridgeBase returns the requests that make BridgeTable. If it exists, the kernel refuses them with EEXIST.
func BridgeBase() []nlconn.Message {
	f := bridgeFeature()
	f.Chains = func() []nft.Chain {
		return []nft.Chain{
			{Name: toPodChain},
			{Name: fromPodChain},
			{Name: framesChain, Kind: "filter", Hook: bridgeForward, Priority: bridgePriority, Drop: true},
		}
	}
	msgs := f.Messages()
	for _, name := range []string{toPodChain, fromPodChain, framesChain} {
		for _, fill := range bridgeRules(name) {
			msgs = append(msgs, ruleMessage(f.Table, name, fill))
		}
	}
	return msgs
}

// BridgeChains returns the number of rules in each chain of BridgeTable.
func BridgeChains() map[string]int {
	counts := map[string]int{}
	for _, name := range []string{toPodChain, fromPodChain, framesChain} {
		counts[name] = len(bridgeRules(name))
	}
	return counts
}

// The types of messages by which hosts join multicast groups, and of neighbour discovery (RFC 2710, RFC 4861, RFC 3810). A
// bridge forwards neighbour solicitations only to the ports that joined their groups.
const (
	groupFirst   = 130
	groupReport2 = 143
)

// The ports of DHCP (RFC 2131, section 4.1, and RFC 8415, section 7.2).
const (
	dhcpServer4, dhcpClient4 = 67, 68
	dhcpServer6, dhcpClient6 = 547, 546
)

// bridgeRules returns the rules of a chain of BridgeTable. Like the base chains of Table, frames drops everything after another
// program's flush.
func bridgeRules(chain string) []func(expressions) {
	if chain == framesChain {
		return []func(expressions){
			func(e expressions) {
				e.Meta(unix.NFT_META_OIFNAME, register)
				e.Lookup(ingressPorts, false)
				e.Verdict(unix.NFT_JUMP, toPodChain)
			},
			func(e expressions) {
				e.Meta(unix.NFT_META_IIFNAME, register)
				e.Lookup(egressPorts, false)
				e.Verdict(unix.NFT_JUMP, fromPodChain)
			},
			func(e expressions) { e.Verdict(nft.VerdictAccept, "") },
		}
	}
	port, offset4, offset6 := uint32(unix.NFT_META_OIFNAME), uint32(16), uint32(24)
	if chain == fromPodChain {
		port, offset4, offset6 = unix.NFT_META_IIFNAME, 12, 8
	}
	back := func(e expressions) { e.Verdict(unix.NFT_RETURN, "") }
	dhcp := func(v6 bool, client, server uint16) func(expressions) {
		return func(e expressions) {
			if chain == toPodChain {
				client, server = server, client
			}
			e.etherType(v6)
			e.protocol(unix.IPPROTO_UDP)
			e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4, register)
			e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, client), server))
			back(e)
		}
	}
	group := func(first, last byte) func(expressions) {
		return func(e expressions) {
			e.etherType(true)
			e.icmp6(first, last)
			back(e)
		}
	}
	own := func(v6 bool, offset uint32) func(expressions) {
		return func(e expressions) {
			e.etherType(v6)
			e.Meta(port, register)
			e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(addressField(v6).Size()), register+unix.IFNAMSIZ/4)
			e.Lookup(podSet(portSet, v6), false)
			back(e)
		}
	}
	drop := func(e expressions) { e.Verdict(nft.VerdictDrop, "") }
	linkLocal := func(e expressions) { // which Table does not know
		e.etherType(true)
		e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset6, 16, register)
		e.network(linkLocalNetwork())
		drop(e)
	}
	return []func(expressions){
		// Later rules would match the protocol in a tag if nft loads a saved table: it compares "meta protocol" then.
		func(e expressions) { e.frameOf(unix.ETH_P_8021Q); drop(e) },
		func(e expressions) { e.frameOf(unix.ETH_P_8021AD); drop(e) },
		func(e expressions) { e.frameOf(unix.ETH_P_ARP); back(e) },
		group(groupFirst, ndLast), group(groupReport2, groupReport2),
		dhcp(false, dhcpClient4, dhcpServer4), dhcp(true, dhcpClient6, dhcpServer6),
		linkLocal, own(false, offset4), own(true, offset6), drop,
	}
}

// frameOf matches the type of a frame. Of a frame with a VLAN tag it is that of the tag.
func (e expressions) frameOf(kind uint16) {
	const offset = 12
	e.Payload(unix.NFT_PAYLOAD_LL_HEADER, offset, 2, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(nil, kind))
}

func (e expressions) etherType(v6 bool) {
	if v6 {
		e.frameOf(unix.ETH_P_IPV6)
	} else {
		e.frameOf(unix.ETH_P_IP)
	}
}

// icmp6 matches ICMPv6 messages by their types.
func (e expressions) icmp6(first, last byte) {
	e.protocol(unix.IPPROTO_ICMPV6)
	e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, register)
	if first == last {
		e.Compare(unix.NFT_CMP_EQ, register, []byte{first})
		return
	}
	e.Compare(unix.NFT_CMP_GTE, register, []byte{first})
	e.Compare(unix.NFT_CMP_LTE, register, []byte{last})
}
