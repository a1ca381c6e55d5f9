package netops

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// nftFeature is what one purpose needs in the kernel. It is made whole, in one
// transaction, when an element of one of its sets is first added, and belongs
// to one table that other features may share. A new purpose is one more
// function that returns a feature, listed in baseSchema: a table made by an
// older version then gains it on demand.
type nftFeature struct {
	table nftTable
	sets  []*nftSet
	// chains are asked for when the feature is made, which in most processes is never.
	chains func() []nftChain
	// chainOf makes a chain on demand from its name; nil where there are none.
	chainOf func(name string) (nftChain, bool)
}

type nftTable struct {
	family byte // NFPROTO_*
	name   string
}

// nftSet is a set, or with data a map. Several key fields make a concatenation.
// A prefix field makes it an interval set, and must be one of several: the
// kernel keeps intervals of a single field in another form.
type nftSet struct {
	table nftTable
	name  string
	key   []field
	data  []field
}

// nftChain is a base chain with policy accept, or without a kind a chain that
// only rules and verdicts lead to.
type nftChain struct {
	name     string
	kind     string // "nat", "filter", "route" or ""
	hook     uint32
	priority int32
	rules    []nftRule
}

const (
	// prioritySourceNAT is NF_IP_PRI_NAT_SRC of linux/netfilter_ipv4.h.
	prioritySourceNAT = 100
	// priorityBridgeFirst is NF_BR_PRI_NAT_DST_BRIDGED of linux/netfilter_bridge.h:
	// before any filter of the bridge family.
	priorityBridgeFirst = -300
	// bridgePrerouting is NF_BR_PRE_ROUTING of linux/netfilter_bridge.h.
	bridgePrerouting = 0
)

func inetTable() nftTable   { return nftTable{unix.NFPROTO_INET, "cnibox"} }
func bridgeTable() nftTable { return nftTable{unix.NFPROTO_BRIDGE, "cnibox"} }

// baseSchema is everything that we may have in nftables.
func baseSchema() nftSchema {
	return nftSchema{masqueradeFeature(), macGuardFeature(), firewallFeature(), portMapFeature(), routedFeature(), macNATFeature()}
}

// masqueradeFeature hides networks behind the node's addresses. An element is
// one network: the host device its packets come in by, or a pattern of those
// where each container has one, and its subnet. Traffic within the subnet and
// multicast keep their source. A packet the node itself
// sends has no input device and so matches nothing.
func masqueradeFeature() nftFeature {
	table := inetTable()
	masq4 := &nftSet{table: table, name: "masq4", key: []field{ifPattern, ip4Prefix}}
	masq6 := &nftSet{table: table, name: "masq6", key: []field{ifPattern, ip6Prefix}}
	return nftFeature{
		table: table,
		sets:  []*nftSet{masq4, masq6},
		chains: func() []nftChain {
			return []nftChain{{
				name: "postrouting", kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: prioritySourceNAT,
				rules: []nftRule{
					rule(destinationIn("224.0.0.0/4"), returns()),
					rule(inputLink(), destination4(), in(masq4), returns()),
					rule(inputLink(), source4(), in(masq4), masquerade()),
					rule(destinationIn("ff00::/8"), returns()),
					rule(inputLink(), destination6(), in(masq6), returns()),
					rule(inputLink(), source6(), in(masq6), masquerade()),
				},
			}}
		},
	}
}

// macGuardFeature drops frames that a guarded bridge port sends with any other
// source address than those paired with it.
func macGuardFeature() nftFeature {
	table := bridgeTable()
	ports := &nftSet{table: table, name: "macguard_ports", key: []field{ifName}}
	pairs := &nftSet{table: table, name: "macguard_pairs", key: []field{ifName, etherAddr}}
	return nftFeature{
		table: table,
		sets:  []*nftSet{ports, pairs},
		chains: func() []nftChain {
			return []nftChain{{
				name: "prerouting", kind: "filter", hook: bridgePrerouting, priority: priorityBridgeFirst,
				rules: []nftRule{
					rule(inputLink(), sourceMAC(), in(pairs), returns()),
					rule(inputLink(), in(ports), drops()),
				},
			}}
		},
	}
}

// String is "inet cnibox", as nft names it.
func (t nftTable) String() string {
	family := "inet"
	switch t.family {
	case unix.NFPROTO_BRIDGE:
		family = "bridge"
	case unix.NFPROTO_IPV4:
		family = "ip"
	case unix.NFPROTO_IPV6:
		family = "ip6"
	}
	return family + " " + t.name
}

// String is "inet cnibox masq4", as nft names it.
func (s *nftSet) String() string { return fmt.Sprintf("%s %s", s.table, s.name) }

func (s *nftSet) isInterval() bool {
	for _, f := range s.key {
		if f.isPrefix() {
			return true
		}
	}
	return false
}

// keySize is the length of a key in bytes.
func (s *nftSet) keySize() int {
	n := 0
	for i := range s.key {
		n += width(s.key, i)
	}
	return n
}

// nftSchema is what a process may have in nftables.
type nftSchema []nftFeature

// sets lists all sets.
func (s nftSchema) sets() []*nftSet {
	var all []*nftSet
	for _, f := range s {
		all = append(all, f.sets...)
	}
	return all
}

// set is the one of a name; nil if there is none.
func (s nftSchema) set(name string) *nftSet {
	for _, f := range s {
		for _, set := range f.sets {
			if set.name == name {
				return set
			}
		}
	}
	return nil
}
