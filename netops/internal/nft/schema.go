package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Feature is the set of nftables objects for one purpose. All of them are in one
// table, which features may share. A feature is made in one transaction when the
// first element is added to one of its sets. If an older version made the table,
// a new feature is added to it in the same way.
type Feature struct {
	Table Table
	Sets  []*Set
	// Chains returns the feature's chains. It is called only when the feature is
	// made; most processes never call it.
	Chains func() []Chain
	// ChainOf returns the chain that is made on demand for a name. It is nil if
	// the feature has no such chains.
	ChainOf func(name string) (Chain, bool)
}

// Table is an nftables table of cnibox or of another program.
type Table struct {
	Family byte // NFPROTO_*
	Name   string
}

// Set is a set, or a map if Data is not empty. Several key fields make a
// concatenation. A prefix field makes an interval set. It must be one of several
// key fields, because the kernel stores intervals of a single field in another
// form.
type Set struct {
	Table Table
	Name  string
	Key   []Field
	Data  []Field
	// Ranges makes a single key field a range. Each range has two elements: its first key, and the key behind it with IsEnd.
	Ranges bool
}

// Chain is a base chain with policy accept, or drop. If Kind is empty, it is a
// regular chain, which only rules and verdicts use.
type Chain struct {
	Name     string
	Kind     string // "nat", "filter", "route" or ""
	Hook     uint32
	Priority int32
	Device   string // only in the netdev family
	Drop     bool
	Rules    []Rule
}

// Priorities of base chains in the IP and inet families (linux/netfilter_ipv4.h).
const (
	PriorityRaw       = -300 // NF_IP_PRI_RAW
	PriorityFilter    = 0    // NF_IP_PRI_FILTER
	PrioritySourceNAT = 100  // NF_IP_PRI_NAT_SRC
)

// String returns the table in nft's syntax: "inet cnibox".
func (t Table) String() string {
	family := "inet"
	switch t.Family {
	case unix.NFPROTO_BRIDGE:
		family = "bridge"
	case unix.NFPROTO_NETDEV:
		family = "netdev"
	case unix.NFPROTO_ARP:
		family = "arp"
	case unix.NFPROTO_IPV4:
		family = "ip"
	case unix.NFPROTO_IPV6:
		family = "ip6"
	}
	return family + " " + t.Name
}

// String returns the set in nft's syntax: "inet cnibox masq4".
func (s *Set) String() string { return fmt.Sprintf("%s %s", s.Table, s.Name) }

func (s *Set) isInterval() bool {
	for _, f := range s.Key {
		if f.of().interval {
			return true
		}
	}
	return false
}

// keySize returns the length of a key in bytes.
func (s *Set) keySize() int {
	n := 0
	for i := range s.Key {
		n += width(s.Key, i)
	}
	return n
}

// Schema lists all features that a process may make in nftables.
type Schema []Feature

// Sets lists all sets.
func (s Schema) Sets() []*Set {
	var all []*Set
	for _, f := range s {
		all = append(all, f.Sets...)
	}
	return all
}

// set returns the set with a name, or nil.
func (s Schema) set(name string) *Set {
	for _, f := range s {
		for _, set := range f.Sets {
			if set.Name == name {
				return set
			}
		}
	}
	return nil
}
