package podtable

import "github.com/cnibox/cnibox/netops/internal/nft"

// Way is a way of packets to or from a pod that does not lead through the chains of its policies.
type Way struct {
	// Name is the comment of the rules that close it.
	Name string
	// Family and Hook are where these rules are.
	Family, Hook string
	// Attack says what a program in another pod does.
	Attack string
}

// The names of ways.
const (
	wayStray        = "no-connection"
	wayMidstream    = "midstream"
	wayOwnAddress   = "own-address"
	wayRoutedND     = "routed-nd"
	wayRelated      = "related"
	wayForgedPod    = "forged-pod"
	wayForgedSource = "forged-source"
	wayUnjudged     = "unjudged"
	wayFrames       = "frames"
	wayTags         = "two-tags"
	wayForgedMAC    = "forged-mac"
	wayForgedARP    = "forged-arp"
	wayForgedFrame  = "forged-frame"
	waySelf         = "to-itself"
	wayRouter       = "router"
	wayForgedND     = "forged-nd"
	wayWeakHost     = "weak-host"
	wayDHCP         = "dhcp"
	waySourceRoute  = "source-route"
	wayRenamed      = "renamed"
)

// Ways returns all ways. docs/policy.md has a table of them, and the tests in roles/cluster/policy play each attack.
func Ways() []Way {
	return []Way{
		{wayStray, "inet", "forward", "sends packets that conntrack takes for no part of a connection"},
		{wayMidstream, "inet", "forward, output", "keeps a connection that is forbidden by now, after conntrack has lost its entry"},
		{wayOwnAddress, "inet", "forward", "sends to a pod with the pod's own address as the source: a policy lets a pod reach itself"},
		{wayRoutedND, "inet", "forward", "sends messages of neighbour discovery with any contents through the node"},
		{wayRelated, "inet", "forward", "sends ICMP errors that quote a connection of other pods"},
		{wayForgedPod, "inet", "prerouting", "sends from outside with the address of a pod of this node"},
		{wayForgedSource, "inet", "prerouting", "sends with another address than its own, also to itself, so that conntrack takes its next packets for answers"},
		{waySourceRoute, "inet", "forward, and of bridges forward, output", "sends packets whose source route names a pod, where the node or the pod follows source routes"},
		{wayUnjudged, "bridge", "forward, output", "sends packets that reach a port of a bridge without passing the chains of policies: link-local ones through the bridge's MAC, those that wait for the pod's answer to ARP, those of a device on the bridge, or all where br_netfilter is switched off"},
		{wayTags, "bridge", "prerouting", "hides a forged packet behind two VLAN tags"},
		{wayForgedMAC, "bridge", "prerouting", "sends with the MAC of another pod or of the bridge, which then sends it the other one's frames"},
		{wayForgedARP, "bridge", "prerouting", "claims the address of another pod by ARP"},
		{wayForgedND, "bridge", "prerouting", "claims the address of another pod by neighbour discovery"},
		{wayForgedFrame, "bridge", "prerouting", "sends with the address of another pod, or one that is not its own"},
		{waySelf, "bridge", "prerouting", "sends itself a packet from outside, after which conntrack takes its packets for answers"},
		{wayRouter, "bridge", "prerouting", "sends router advertisements, redirects or answers of DHCP"},
		{wayWeakHost, "bridge", "forward, output", "sends to a pod's address by another interface of that pod, which no policy selects"},
		{wayDHCP, "bridge", "forward, output", "sends to another pod as if that were a DHCP server: policies let requests of DHCP pass"},
		{wayRenamed, "inet", "prerouting, and bridge prerouting, forward, output", "sends by a link that was renamed on the host, whose name no rule has"},
		{wayFrames, "bridge", "forward, prerouting", "sends frames that the chains of policies do not receive: broadcast, link-local, with VLAN tags, of other protocols"},
	}
}

// closing returns a rule that closes a way.
func closing(way string, parts ...nft.Part) nft.Rule { return append(parts, nft.Comment(way)) }
