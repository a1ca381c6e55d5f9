// Package podfilter maintains the nftables rules that enforce policies on the pods of a node. A caller
// describes them as a Ruleset. See docs/design.md, "Network policy".
package podfilter

import (
	"encoding/binary"
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// Rule is a rule of the kernel's table.
type Rule = podtable.Rule

// Peer is what a Rule says of the other end of a connection.
type Peer = podtable.Peer

// Chain is a chain of the kernel's table.
type Chain = podtable.Chain

// Form selects the table's base chains.
type Form = podtable.Form

// Deny is the chain that drops everything.
const Deny = podtable.Deny

// Suffix returns the end of the name of a set of one address family.
func Suffix(v6 bool) string { return podtable.Suffix(v6) }

// Kind is the type of a set's members.
type Kind int

// The kinds of sets.
const (
	Addresses Kind = iota
	Endpoints      // address and port
	Ports
)

// Set is a set that rules use. It counts how often each member was added, and Ensure reads which members have changed
// since. It is not safe for concurrent use.
type Set struct {
	Name    string
	Kind    Kind
	V6      bool
	members map[string]int
	changed map[string]struct{}
}

// NewSet returns an empty set. The family has no effect on ports.
func NewSet(name string, kind Kind, v6 bool) *Set {
	return &Set{Name: name, Kind: kind, V6: v6, members: map[string]int{}, changed: map[string]struct{}{}}
}

// Len returns the number of members.
func (s *Set) Len() int { return len(s.members) }

// Has reports whether the set has a member, as Key returns it.
func (s *Set) Has(member string) bool { return s.members[member] > 0 }

// Add adds a member, as Key returns it.
func (s *Set) Add(member string) {
	s.members[member]++
	if s.members[member] == 1 {
		s.changed[member] = struct{}{}
	}
}

// Remove reverts one Add.
func (s *Set) Remove(member string) {
	s.members[member]--
	if s.members[member] <= 0 {
		delete(s.members, member)
		s.changed[member] = struct{}{}
	}
}

// Key returns a member of a set: an address, an address and a port, or, without an address, a port.
func Key(a netip.Addr, port uint16) string {
	b := a.AsSlice()
	switch {
	case port == 0:
	case a.IsValid():
		b = append(binary.BigEndian.AppendUint16(b, port), 0, 0) // each field fills registers of 4 bytes
	default:
		b = binary.BigEndian.AppendUint16(b, port)
	}
	return string(b)
}

// set returns the set in the kernel.
func (s *Set) set() *nft.Set {
	address := nft.IP4Addr
	if s.V6 {
		address = nft.IP6Addr
	}
	key := []nft.Field{address}
	switch s.Kind {
	case Addresses:
	case Endpoints:
		key = []nft.Field{address, nft.InetService}
	case Ports:
		key = []nft.Field{nft.InetService}
	}
	return &nft.Set{Table: podtable.Table(), Name: s.Name, Key: key}
}

// Ruleset is the desired state.
type Ruleset struct {
	Sets   map[string]*Set
	Chains map[string]*Chain
	// Pods are the addresses of this node's pods that policies select.
	Pods map[netip.Addr]Pod
	// Pending are those that an ADD will put into the kernel.
	Pending map[netip.Addr]Pod
	Form    Form
}

// hasPorts reports whether a pod is on a bridge.
func (r *Ruleset) hasPorts() bool {
	for _, p := range r.Pods {
		if p.Port != "" {
			return true
		}
	}
	return false
}

// Pod has the chains of a pod, and the label and the bridge port of its attachment.
type Pod = podtable.Pod
