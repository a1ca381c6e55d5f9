// Package podfilter maintains the nftables rules that enforce policies on the pods of a node. A caller
// describes them as a Ruleset. See docs/design.md, "Network policy".
package podfilter

import (
	"encoding/binary"
	"maps"
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

// Way is a way of packets to or from a pod that does not lead through the chains of its policies.
type Way = podtable.Way

// Ways returns all ways.
func Ways() []Way { return podtable.Ways() }

// Deny is the chain that drops everything, and Denied the verdict that leads to it.
const (
	Deny   = podtable.Deny
	Denied = podtable.Denied
)

// Suffix returns the end of the name of a set of one address family.
func Suffix(v6 bool) string { return podtable.Suffix(v6) }

// LogGroup is the group of nfnetlink_log that gets denied packets.
const LogGroup = podtable.LogGroup

// Kind is the type of a set's members.
type Kind int

// The kinds of sets.
const (
	Addresses Kind = iota
	Endpoints      // address and port
	Ports          // ranges of ports
	Networks       // ranges of addresses
	Verdicts       // a map from ranges of ports to verdicts
)

// Set is a set that rules use. It counts how often each member was added, and Ensure reads which members have changed
// since. It is not safe for concurrent use.
type Set struct {
	Name    string
	Kind    Kind
	V6      bool
	members map[string]struct{}
	// again counts the further Adds of members.
	again map[string]int
	// changed is nil until the kernel's set is made or compared.
	changed map[string]struct{}
}

// NewSet returns an empty set. The family has no effect on ports.
func NewSet(name string, kind Kind, v6 bool) *Set {
	return &Set{Name: name, Kind: kind, V6: v6, members: map[string]struct{}{}, again: map[string]int{}}
}

// hasRanges is true for a set that NewRanges made.
func (s *Set) hasRanges() bool { return s.Kind == Ports || s.Kind == Networks }

// Len returns the number of members.
func (s *Set) Len() int { return len(s.members) }

// Has reports whether the set has a member.
func (s *Set) Has(member string) bool { _, has := s.members[member]; return has }

// Add adds a member: what Key returns.
func (s *Set) Add(member string) {
	if s.Has(member) {
		s.again[member]++
		return
	}
	s.members[member] = struct{}{}
	s.note(member)
}

// Remove reverts one Add.
func (s *Set) Remove(member string) {
	if s.again[member] > 0 {
		s.again[member]--
		return
	}
	delete(s.members, member)
	delete(s.again, member)
	s.note(member)
}

// note notes a change, or that it was reverted.
func (s *Set) note(member string) {
	if s.changed == nil {
		return
	}
	if _, was := s.changed[member]; was {
		delete(s.changed, member)
	} else {
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

// set returns the set in the kernel. Its changes are noted from now on.
func (s *Set) set() *nft.Set {
	if s.changed == nil {
		s.changed = map[string]struct{}{}
	}
	address := nft.IP4Addr
	if s.V6 {
		address = nft.IP6Addr
	}
	key := []nft.Field{address}
	switch s.Kind {
	case Addresses, Networks:
	case Endpoints:
		key = []nft.Field{address, nft.InetService}
	case Ports:
		key = []nft.Field{nft.InetService}
	case Verdicts:
		return &nft.Set{Table: podtable.Table(), Name: s.Name, Key: []nft.Field{nft.InetService}, Data: []nft.Field{nft.Verdict}, Ranges: true}
	}
	return &nft.Set{Table: podtable.Table(), Name: s.Name, Key: key, Ranges: s.hasRanges()}
}

// entry returns the element of set() for a member.
func (s *Set) entry(set *nft.Set, member string) *nft.Entry {
	if s.Kind == Verdicts {
		return verdictEntry(set, member)
	}
	n := &nft.Entry{Set: set, Key: []byte(member)}
	if last := len(member) - 1; set.Ranges {
		n.Key, n.IsEnd = n.Key[:last], member[last:] == endOfRange
	}
	return n
}

// memberOf is the inverse of entry.
func memberOf(n *nft.Entry) string {
	switch {
	case len(n.Set.Data) > 0:
		return memberOfMap(n)
	case !n.Set.Ranges:
		return string(n.Key)
	case n.IsEnd:
		return string(n.Key) + endOfRange
	}
	return string(n.Key) + beginOfRange
}

// Ruleset is the desired state. Its maps of sets and chains are changed by its methods only, which count the users of each and note for
// Ensure what has changed since. It is not safe for concurrent use.
type Ruleset struct {
	Sets   map[string]*Set
	Chains map[string]*Chain
	// Pods are the addresses of this node's pods that policies select.
	Pods map[netip.Addr]Pod
	// Pending are those that an ADD will put into the kernel.
	Pending map[netip.Addr]Pod
	// links are the interfaces of this node's pods by their labels.
	links map[string]Link
	Form  Form

	// users has the number of users of each set and chain by name, and changed the names of those that were added or removed. Sets and
	// chains have different names.
	users   map[string]int
	changed map[string]struct{}
	// podsChanged is true if Pods or links has changed.
	podsChanged bool
}

// NewRuleset returns a Ruleset without pods.
func NewRuleset() *Ruleset {
	return &Ruleset{
		Sets: map[string]*Set{}, Chains: map[string]*Chain{}, Pods: map[netip.Addr]Pod{}, Pending: map[netip.Addr]Pod{},
		users: map[string]int{}, changed: map[string]struct{}{},
	}
}

// Use adds a user of chains and sets.
func (r *Ruleset) Use(chains []*Chain, sets []*Set) {
	for _, c := range chains {
		if r.count(c.Name, 1) == 1 {
			r.Chains[c.Name] = c
		}
	}
	for _, s := range sets {
		if r.count(s.Name, 1) == 1 {
			r.Sets[s.Name] = s
		}
	}
}

// Leave reverts one Use.
func (r *Ruleset) Leave(chains []*Chain, sets []*Set) {
	for _, c := range chains {
		if r.count(c.Name, -1) == 0 {
			delete(r.Chains, c.Name)
		}
	}
	for _, s := range sets {
		if r.count(s.Name, -1) == 0 {
			delete(r.Sets, s.Name)
		}
	}
}

// PutPod adds or changes the pod of an address.
func (r *Ruleset) PutPod(a netip.Addr, p Pod, isPending bool) {
	if isPending {
		r.Pending[a] = p
		return
	}
	r.Pods[a], r.podsChanged = p, true
}

// SetLinks replaces the interfaces of this node's pods.
func (r *Ruleset) SetLinks(all map[string]Link) {
	if !maps.EqualFunc(r.links, all, func(a, b Link) bool { return a.Equal(&b) }) {
		r.links, r.podsChanged = all, true
	}
}

// RemovePods removes addresses of an attachment.
func (r *Ruleset) RemovePods(label string, addresses []netip.Addr) {
	for _, a := range addresses {
		if r.Pods[a].Label == label {
			delete(r.Pods, a)
			r.podsChanged = true
		}
		if r.Pending[a].Label == label {
			delete(r.Pending, a)
		}
	}
}

// count changes the number of users of a name.
func (r *Ruleset) count(name string, by int) int {
	n := r.users[name] + by
	r.users[name] = n
	if n == 0 {
		delete(r.users, name)
	}
	if n == 0 || n == 1 && by > 0 {
		r.changed[name] = struct{}{}
	}
	return n
}

// family returns the index of an address family.
func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// families is true for IPv4 and for IPv6 if pods have such addresses.
func (r *Ruleset) families() (has [2]bool) {
	for _, of := range []map[netip.Addr]Pod{r.Pods, r.Pending} {
		for a := range of {
			has[family(a.Is6())] = true
		}
	}
	return has
}

// hasPorts reports whether a pod is on a bridge.
func (r *Ruleset) hasPorts() bool {
	for _, l := range r.links {
		if l.Bridge != "" {
			return true
		}
	}
	for _, p := range r.Pods {
		if p.Port != "" {
			return true
		}
	}
	return false
}

// Pod has the chains of a pod, and the label and the bridge port of its attachment.
type Pod = podtable.Pod

// Link is the interface of a pod on the host.
type Link = podtable.Link

// GatewayLink is an interface of the node on a bridge of pods.
type GatewayLink = podtable.GatewayLink
