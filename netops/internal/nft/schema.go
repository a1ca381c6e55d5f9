package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Feature is what one purpose needs in the kernel. It is made whole, in one
// transaction, when an element of one of its sets is first added, and belongs
// to one table that other features may share. A table made by an older version
// gains a new feature on demand.
type Feature struct {
	Table Table
	Sets  []*Set
	// Chains are asked for when the feature is made, which in most processes is never.
	Chains func() []Chain
	// ChainOf makes a chain on demand from its name; nil where there are none.
	ChainOf func(name string) (Chain, bool)
}

// Table is a table of ours, or of another program.
type Table struct {
	Family byte // NFPROTO_*
	Name   string
}

// Set is a set, or with data a map. Several key fields make a concatenation.
// A prefix field makes it an interval set, and must be one of several: the
// kernel keeps intervals of a single field in another form.
type Set struct {
	Table Table
	Name  string
	Key   []Field
	Data  []Field
}

// Chain is a base chain with policy accept, or without a kind a chain that
// only rules and verdicts lead to.
type Chain struct {
	Name     string
	Kind     string // "nat", "filter", "route" or ""
	Hook     uint32
	Priority int32
	Rules    []Rule
}

// Priorities of base chains in the IP and inet families (linux/netfilter_ipv4.h).
const (
	PriorityFilter    = 0   // NF_IP_PRI_FILTER
	PrioritySourceNAT = 100 // NF_IP_PRI_NAT_SRC
)

// String is "inet cnibox", as nft names it.
func (t Table) String() string {
	family := "inet"
	switch t.Family {
	case unix.NFPROTO_BRIDGE:
		family = "bridge"
	case unix.NFPROTO_IPV4:
		family = "ip"
	case unix.NFPROTO_IPV6:
		family = "ip6"
	}
	return family + " " + t.Name
}

// String is "inet cnibox masq4", as nft names it.
func (s *Set) String() string { return fmt.Sprintf("%s %s", s.Table, s.Name) }

func (s *Set) isInterval() bool {
	for _, f := range s.Key {
		if f.isPrefix() {
			return true
		}
	}
	return false
}

// keySize is the length of a key in bytes.
func (s *Set) keySize() int {
	n := 0
	for i := range s.Key {
		n += width(s.Key, i)
	}
	return n
}

// Schema is what a process may have in nftables.
type Schema []Feature

// Sets lists all sets.
func (s Schema) Sets() []*Set {
	var all []*Set
	for _, f := range s {
		all = append(all, f.Sets...)
	}
	return all
}

// set is the one of a name; nil if there is none.
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
