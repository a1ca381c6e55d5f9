package podtable

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// The chains that mark packets which have passed the chains of policies, and their priority: behind those. The marks prove it to BridgeTable: a
// bridge has ways to a pod that do not lead through Table, and an administrator can switch br_netfilter off.
const (
	forwardedChain = "forwarded"
	sentChain      = "sent"
	markPriority   = ingressPriority + 1
)

// The bits of a packet's mark: it may enter a pod that policies select for ingress, or it may have left one that they select for egress. BridgeTable
// clears them. kube-proxy uses 0xc000, the role portmap 0x2000, Cilium 0xffff0f00, Calico 0xffff0000, Tailscale 0xff0000 and AWS's plugin 0x80. The
// kernel clears the mark of a packet from another namespace or host.
const (
	mayEnter = 0x1000
	mayLeave = 0x40
)

func markBits(bits uint32) []byte { return binary.NativeEndian.AppendUint32(nil, bits) }

// setMark sets bits of the packet's mark after it has cleared others.
func (e expressions) setMark(clear, set uint32) {
	e.Meta(unix.NFT_META_MARK, register)
	e.Mask(register, markBits(^(clear | set)), markBits(set))
	e.SetMeta(unix.NFT_META_MARK, register)
}

// marked matches packets whose mark has a bit, or with NFT_CMP_EQ none of some bits.
func (e expressions) marked(op, bits uint32) {
	e.Meta(unix.NFT_META_MARK, register)
	e.Mask(register, markBits(bits), nil)
	e.Compare(op, register, markBits(0))
}

// markRules returns the rules of a chain that marks packets. The node's own packets pass no ingress policy. What IPVS sends has the source of
// another host.
func (f Form) markRules(chain string) (rules []baseRule) {
	add := func(fill func(expressions)) { rules = append(rules, baseRule{fill: fill}) }
	for _, v6 := range []bool{false, true} {
		add(func(e expressions) {
			e.family(v6)
			e.address(v6, false, register)
			e.Lookup(podSet(ingressChain+strays, v6), false)
			e.setMark(0, mayEnter)
		})
		if chain == forwardedChain {
			add(func(e expressions) {
				e.family(v6)
				e.address(v6, true, register)
				e.Lookup(podSet(egressChain+strays, v6), false)
				e.setMark(0, mayLeave)
			})
		}
	}
	if chain == sentChain && f.Services { // a rule of its own: the agent compares the numbers of rules
		add(func(e expressions) { e.ofThisNode(unix.NFT_CMP_NEQ); accept(e) })
	}
	if chain == sentChain {
		add(func(e expressions) {
			e.Meta(unix.NFT_META_OIFNAME, register)
			e.Lookup(bridgeSet, false)
			e.setMark(0, mayEnter)
		})
	}
	return rules
}

// gatewayFrameRules accept frames. Those to a port behind which the node has an interface become packets to the node: the chains judge them when
// they arrive on that interface, so here they get a mark. Those from there keep theirs. br_netfilter is next.
func gatewayFrameRules() []baseRule {
	const destination, source, size = 0, 6, 6 // in the frame
	gateway := func(key, mac uint32, then func(expressions)) baseRule {
		return baseRule{fill: func(e expressions) {
			e.Meta(key, register)
			e.Payload(unix.NFT_PAYLOAD_LL_HEADER, mac, size, register+unix.IFNAMSIZ/4)
			e.Lookup(gatewayPorts, false)
			then(e)
			accept(e)
		}}
	}
	return []baseRule{
		gateway(unix.NFT_META_OIFNAME, destination, func(e expressions) { e.setMark(mayEnter, mayLeave) }),
		gateway(unix.NFT_META_IIFNAME, source, func(expressions) {}),
		clearMarks(),
		{fill: accept},
	}
}

// clearMarks clears the marks, so that another program's are none.
func clearMarks() baseRule {
	return baseRule{fill: func(e expressions) {
		e.marked(unix.NFT_CMP_NEQ, mayEnter|mayLeave)
		e.setMark(mayEnter|mayLeave, 0)
	}}
}

// ofGateway accepts what a bridge forwards to and from the node's interface behind a port. Other chains judge it: when it comes from the node, or
// has arrived there.
func ofGateway() baseRule {
	return baseRule{fill: func(e expressions) {
		e.marked(unix.NFT_CMP_NEQ, mayEnter|mayLeave)
		e.Meta(unix.NFT_META_IIFNAME, register)
		e.Lookup(gatewayBridges, false)
		accept(e)
	}}
}

// The chains of BridgeTable that drop packets without marks: behind br_netfilter, and in what the node sends to its bridge.
const (
	judgedChain   = "judged"
	ofBridgeChain = "of_bridge"
	unmarkedChain = "unmarked"
	// behindNetfilter is behind NF_BR_PRI_BRNF.
	behindNetfilter = 1
	// bridgeLocalOut is NF_BR_LOCAL_OUT.
	bridgeLocalOut = 3
)

// judgedRules returns the rules of a chain that checks the marks.
func judgedRules(chain string) []baseRule {
	unmarked := func(key uint32, set string, bit uint32) baseRule {
		return baseRule{fill: func(e expressions) {
			e.Meta(key, register)
			e.Lookup(set, false)
			e.marked(unix.NFT_CMP_EQ, bit)
			e.Verdict(unix.NFT_JUMP, unmarkedChain)
		}}
	}
	rules := append(portRouteRules(), unmarked(unix.NFT_META_OIFNAME, ingressPorts, mayEnter))
	if chain == ofBridgeChain {
		rules = append([]baseRule{renamedTo(portLinks)}, rules...)
	}
	if chain == judgedChain {
		rules = append(rules, unmarked(unix.NFT_META_IIFNAME, egressPorts, mayLeave))
	} else {
		rules = append(rules, closing(wayDHCP, func(e expressions) { // of a pod that policies select for egress, through the bridge's MAC
			client, server := dhcpPorts(false)
			e.udpOnFrame(false, client, server)
			e.marked(unix.NFT_CMP_NEQ, mayLeave)
			e.toNoRouter()
			e.Verdict(nft.VerdictDrop, "")
		}))
	}
	return append(rules, clearMarks())
}

// portRouteRules drop frames that bring a packet for a pod that policies select to another pod's port, or to another port of the same pod: Linux
// accepts a packet for each of its addresses on each interface. A router receives packets for others. Nor does a pod receive source routes, which a
// pod that follows them takes to its other address.
func portRouteRules() (rules []baseRule) {
	for _, option := range []uint8{looseRoute, strictRoute} {
		rules = append(rules, closing(waySourceRoute, func(e expressions) {
			e.kind(unix.ETH_P_IP)
			e.option(option)
			e.toNoRouter()
			e.Verdict(nft.VerdictDrop, "")
		}))
	}
	for _, v6 := range []bool{false, true} {
		rules = append(rules, closing(wayWeakHost, func(e expressions) {
			e.kind(etherTypeOf(v6))
			e.address(v6, false, register)
			e.Lookup(podSet(selectedSet, v6), false)
			e.Meta(unix.NFT_META_OIFNAME, register)
			e.address(v6, false, register+unix.IFNAMSIZ/4)
			e.Lookup(podSet(portSet, v6), true)
			e.toNoRouter()
			e.Counter()
			e.Verdict(nft.VerdictDrop, "")
		}))
	}
	return rules
}

// unmarkedRules returns the rules for packets without a mark. The first let pass what a bridge, and servers by raw sockets, send without Table: the
// other chains say to and from which pods.
func unmarkedRules() (rules []baseRule) {
	add := func(fill func(expressions)) {
		rules = append(rules, baseRule{fill: func(e expressions) { fill(e); e.Verdict(unix.NFT_RETURN, "") }})
	}
	add(func(e expressions) { e.frameOf(unix.ETH_P_ARP) })
	for _, g := range groups() {
		add(g.match)
	}
	for _, v6 := range []bool{false, true} {
		client, server := dhcpPorts(v6)
		add(func(e expressions) { e.udpOnFrame(v6, client, server) })
		add(func(e expressions) { e.udpOnFrame(v6, server, client) })
	}
	add(func(e expressions) {
		const groupAddresses = 0xe0
		e.frameOf(unix.ETH_P_IP)
		e.protocol(unix.IPPROTO_IGMP)
		e.address(false, false, register)
		e.Mask(register, []byte{0xf0, 0, 0, 0}, nil)
		e.Compare(unix.NFT_CMP_EQ, register, []byte{groupAddresses, 0, 0, 0})
	})
	for _, kind := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD, unix.ETH_P_IP, unix.ETH_P_IPV6} {
		rules = append(rules, closing(wayUnjudged, func(e expressions) {
			e.frameOf(kind)
			e.Counter()
			e.Verdict(nft.VerdictDrop, "")
		}))
	}
	return rules
}
