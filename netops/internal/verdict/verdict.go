// Package verdict computes what packet filters do with a packet: the chains of nftables, which
// iptables-nft also uses, and the tables of iptables-legacy. It reads the rules and sends nothing.
package verdict

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Direction is what this namespace does with a packet.
type Direction uint8

// The directions.
const (
	Sent Direction = iota
	Received
	Forwarded
	// Frame is a packet on its way through ports of a bridge. It has no Out if it is for the bridge itself, and no In if it comes from there.
	Frame
)

// State is what is known about the connection of a packet.
type State uint8

// The states. An unknown one can also be invalid.
const (
	Unknown State = iota
	New
	Established
)

// Packet is a packet that this namespace sends, receives or forwards.
type Packet struct {
	Direction Direction
	// In and Out are its devices. A forwarded packet may have "" for one that is not known.
	In, Out string
	// Protocol is the transport protocol (IPPROTO_*), 0 for any.
	Protocol byte
	// Source and Destination may have port 0 for a port that is not known, and one of them an invalid address.
	Source, Destination netip.AddrPort
	State               State
	// IsARP means that it is a request of ARP.
	IsARP bool
	// IsTranslated means that rules of the kind nat may have changed its destination or its mark.
	IsTranslated bool
	// Original is the destination that NAT has changed to Destination. It is invalid if that is not known.
	Original netip.AddrPort
	// mark is its mark, of which the bits of unknownMark are not known.
	mark, unknownMark uint32
	// isTranslatedBack means that NAT has yet to give an answer its destination.
	isTranslatedBack bool
	// filter knows the numbers of devices. It may be nil.
	filter *Filter
}

// Drop is a rule or a policy that drops a packet.
type Drop struct {
	// Chain is "inet filter input", and Rule names the rule or the policy: "inet filter input handle 7: drop (comment)".
	Chain, Rule string
	// IsPolicy is true for a policy, and IsAlways for a rule without a condition.
	IsPolicy, IsAlways bool
	// SeesOriginal means that it sees the packet before NAT changes its destination.
	SeesOriginal bool
	// Before is the begin of a command that inserts a rule before it. IsLegacy is true for iptables' syntax.
	Before   string
	IsLegacy bool
}

// Exception returns a command that inserts a rule before it, which accepts packets with a condition in the syntax
// of nft or of iptables.
func (d *Drop) Exception(nft, iptables string) string {
	words := []string{d.Before, nft, "accept"}
	if d.IsLegacy {
		words = []string{d.Before, iptables, "-j ACCEPT"}
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// truth is the result of a condition on a packet of which not everything is known.
type truth uint8

const (
	no truth = iota
	maybe
	yes
)

func is(b bool) truth {
	if b {
		return yes
	}
	return no
}

func (t truth) not() truth { return yes - t }

// outcome is a set of results that a chain or a rule can have.
type outcome uint8

const (
	next outcome = 1 << iota // the next rule decides
	ends                     // the chain ends without a verdict
	accepts
	drops
)

// rule is a rule of a chain. verdicts are those that it can have, in nft's syntax; with several
// it is not known which.
type rule interface {
	match(p *Packet) (matches truth, verdicts []string)
	// drop describes the rule.
	drop() Drop
	// effect is what else it does with packets.
	effect() effect
}

// effect is an effect of a rule besides its verdict: it keeps packets from connection tracking, or sets their TTL or hop limit, their zone
// of connection tracking, or the segment size of their TCP connection.
type effect string

const (
	untracks effect = "untracks"
	shortens effect = "shortens"
	zones    effect = "zones"
	clamps   effect = "clamps"
)

// translates is the verdict of a rule in a chain of the kind nat that changes the destination.
const translates = "translate"

// anyVerdict is the verdict of a rule that this package does not understand.
const anyVerdict = "any"

// walk is the path of a packet through the chains of one table.
type walk struct {
	packet *Packet
	rules  func(chain string) []rule
	// last is what dropped the packet for certain, if anything did.
	last  Drop
	depth int
	// effects has the rules that matched by their effects.
	effects map[effect][]Drop
	// table begins the names of its base chains.
	table string
}

// maxDepth is the kernel's limit of jumps (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// chain returns the possible outcomes of a chain. One that is not a base chain ends without a verdict
// after its last rule.
func (w *walk) chain(name string) (all outcome) {
	if w.depth == maxDepth {
		return ends | accepts | drops
	}
	w.depth++
	defer func() { w.depth-- }()
	for _, r := range w.rules(name) {
		matches, verdicts := r.match(w.packet)
		if matches == no {
			continue
		}
		if e := r.effect(); e != "" && (matches == yes || e == clamps) { // whose condition can be the segment size itself
			w.effects[e] = append(w.effects[e], r.drop())
		}
		var out outcome
		for _, v := range verdicts {
			out |= w.follow(r, v)
		}
		all |= out &^ next
		if matches == yes && out&next == 0 {
			return all
		}
	}
	return all | ends
}

// follow returns the outcomes of a verdict.
func (w *walk) follow(r rule, verdict string) outcome {
	word, target, _ := strings.Cut(verdict, " ")
	switch word {
	case "", "continue":
		return next
	case "accept":
		return accepts
	case "drop", translates:
		w.last = r.drop()
		return drops
	case "return":
		return ends
	case "goto":
		return w.chain(target)
	case "jump":
		out := w.chain(target)
		if out&ends != 0 {
			out = out&^ends | next
		}
		return out
	}
	return next | accepts | drops
}

// base adds what drops the packet in a base chain to v. policy is the drop by the chain's policy, or nil if the
// policy is to accept.
func (w *walk) base(name string, policy *Drop, v *Verdict) {
	w.effects = map[effect][]Drop{}
	out := w.chain(name)
	v.Untracked, v.Shortened = append(v.Untracked, w.effects[untracks]...), append(v.Shortened, w.effects[shortens]...)
	v.Zoned, v.Clamped = append(v.Zoned, w.effects[zones]...), append(v.Clamped, w.effects[clamps]...)
	byPolicy := policy != nil && out&ends != 0
	switch {
	case byPolicy && out&accepts == 0:
		v.Drops = append(v.Drops, *policy)
	case out == drops:
		v.Drops = append(v.Drops, w.last)
	case byPolicy || out&drops != 0:
		v.MayDrop = append(v.MayDrop, w.table+name)
	}
}

// Verdict is what is known about the end of a packet.
type Verdict struct {
	// Drops are what drops the packet for certain, in different tables.
	Drops []Drop
	// MayDrop are the chains that drop the packet or not, depending on what is not known.
	MayDrop []string
	// Untracked are rules that keep the packet from connection tracking, and so from NAT. Shortened are rules that set its TTL. Zoned
	// are rules that set its zone of connection tracking. Clamped are rules that may set the segment size of its TCP connection.
	Untracked, Shortened, Zoned, Clamped []Drop
}

// Filter computes verdicts. It reads each chain once.
type Filter struct {
	nft   *nft.Client
	bases []*nft.HeldChain
	// nats are the chains that translate destinations.
	nats   []*nft.HeldChain
	chains map[chainID][]rule
	sets   map[chainID][]nft.HeldElement
	legacy map[chainID]*iptables.State
	// index returns the number of a device.
	index func(ctx context.Context, device string) (int, error)
	// err is the first failure to read a chain or a set.
	err error
}

// chainID identifies a chain or a set.
type chainID struct {
	table nft.Table
	name  string
}

// NF_NETDEV_EGRESS and NF_INET_INGRESS of linux/netfilter.h.
const (
	netdevEgress = 1
	inetIngress  = 5
)

// Hooks of ARP (linux/netfilter_arp.h). Those of a bridge have the numbers of NF_INET_*.
const (
	arpIn  = 0
	arpOut = 1
)

// Read reads the base chains and the tables of iptables-legacy. Tables whose name begins with own are
// left out. index returns the number of a device.
func Read(ctx context.Context, c *nft.Client, run iptables.Runner, own string, index func(context.Context, string) (int, error)) (*Filter, error) {
	f := &Filter{nft: c, index: index, chains: map[chainID][]rule{}, sets: map[chainID][]nft.HeldElement{}}
	for _, family := range []byte{unix.NFPROTO_NETDEV, unix.NFPROTO_BRIDGE, unix.NFPROTO_ARP, unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		bases, err := c.Chains(ctx, family, func(b *nft.HeldChain) bool {
			return b.IsBase && !strings.HasPrefix(b.Table.Name, own)
		})
		if err != nil {
			return nil, err
		}
		for _, b := range bases {
			switch {
			case b.Kind != "nat": // that translates, and sees the first packet only
				f.bases = append(f.bases, b)
			case b.Hook == unix.NF_INET_PRE_ROUTING:
				f.nats = append(f.nats, b)
			}
		}
	}
	sorting.Stable(f.bases, func(a, b *nft.HeldChain) int { return int(a.Priority) - int(b.Priority) })
	var err error
	f.legacy, err = readLegacy(ctx, &iptables.Tables{Run: run})
	return f, err
}

// hooks returns the hooks that a packet passes (NF_INET_*), and its device at a hook.
func (p *Packet) hooks() (all []uint32, device func(hook uint32) string) {
	device = func(hook uint32) string {
		if hook == inetIngress || hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_LOCAL_IN {
			return p.In
		}
		return p.Out
	}
	switch {
	case p.IsARP && p.Direction == Received:
		return []uint32{arpIn}, device
	case p.IsARP && p.Direction == Sent:
		return []uint32{arpOut}, device
	case p.Direction == Frame && p.Out == "":
		return []uint32{inetIngress, unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_IN}, device
	case p.Direction == Frame && p.In == "":
		return []uint32{unix.NF_INET_LOCAL_OUT, unix.NF_INET_POST_ROUTING}, device
	case p.Direction == Received:
		return []uint32{inetIngress, unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_IN}, device
	case p.Direction != Sent:
		return []uint32{inetIngress, unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING}, device
	}
	return []uint32{unix.NF_INET_LOCAL_OUT, unix.NF_INET_POST_ROUTING}, device
}

// sees reports whether a packet passes a chain.
func (p *Packet) sees(b *nft.HeldChain) bool {
	if b.Table.Family == unix.NFPROTO_NETDEV {
		on := p.In
		if b.Hook == netdevEgress {
			on = p.Out
		}
		return on != "" && slices.Contains(b.Devices, on)
	}
	hooks, device := p.hooks()
	if !slices.Contains(hooks, b.Hook) {
		return false
	}
	families := []byte{unix.NFPROTO_INET, p.family()}
	switch {
	case p.Direction == Frame && b.Hook == inetIngress && !p.IsARP:
	case p.Direction == Frame:
		families = []byte{unix.NFPROTO_BRIDGE}
	case p.IsARP:
		families = []byte{unix.NFPROTO_ARP}
	}
	if !slices.Contains(families, b.Table.Family) {
		return false
	}
	return len(b.Devices) == 0 || slices.Contains(b.Devices, device(b.Hook))
}

// family returns the packet's address family (NFPROTO_*).
func (p *Packet) family() byte {
	if p.Destination.Addr().Is4() || p.Source.Addr().Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// destinationNAT is NF_IP_PRI_NAT_DST of linux/netfilter_ipv4.h.
const destinationNAT = -100

// isBeforeNAT reports whether a chain sees packets before NAT changes their destinations.
func isBeforeNAT(b *nft.HeldChain) bool {
	if b.Table.Family == unix.NFPROTO_NETDEV || b.Hook == inetIngress {
		return true
	}
	return b.Hook == unix.NF_INET_PRE_ROUTING && b.Priority < destinationNAT
}

// Translates returns the rule of a chain of nftables before a priority that certainly changes the destination of a packet, or nil.
func (f *Filter) Translates(ctx context.Context, p Packet, priority int32) (*Drop, error) {
	for _, b := range f.nats {
		if !p.sees(b) || b.Priority >= priority {
			continue
		}
		w := &walk{packet: &p, effects: map[effect][]Drop{}, rules: func(name string) []rule { return f.rules(ctx, chainID{b.Table, name}) }}
		if w.chain(b.Name) == drops {
			return &w.last, nlconn.Explain(f.err, "read nftables rules")
		}
	}
	return nil, nlconn.Explain(f.err, "read nftables rules")
}

// RoutingMark returns the mark that a packet has when this namespace routes it after it arrived. It is not known if the rules depend on what is
// not known. Those of iptables-legacy are left out.
func (f *Filter) RoutingMark(ctx context.Context, p Packet) (mark uint32, known bool, err error) {
	p.filter = f
	for _, b := range f.bases {
		if b.Hook != unix.NF_INET_PRE_ROUTING || b.Table.Family == unix.NFPROTO_NETDEV || !p.sees(b) {
			continue
		}
		w := &walk{packet: &p, effects: map[effect][]Drop{}, rules: func(name string) []rule { return f.rules(ctx, chainID{b.Table, name}) }}
		w.chain(b.Name)
	}
	return p.mark, p.unknownMark == 0, nlconn.Explain(f.err, "read nftables rules")
}

// Verdict computes what happens to a packet. A rule with a condition that this package does not know may match
// the packet, or not.
func (f *Filter) Verdict(ctx context.Context, p Packet) (v Verdict, err error) {
	p.filter = f
	if p.IsTranslated || p.Direction == Sent { // a socket can mark packets
		p.unknownMark = ^uint32(0)
	}
	for _, b := range f.bases {
		if !p.sees(b) {
			continue
		}
		var policy *Drop
		if b.Drops {
			policy = &Drop{Chain: b.String(), Rule: b.String() + ": policy drop", IsPolicy: true, Before: "nft insert rule " + b.String()}
		}
		w := &walk{packet: &p, table: b.Table.String() + " ", rules: func(name string) []rule { return f.rules(ctx, chainID{b.Table, name}) }}
		known, dropped := len(v.MayDrop), len(v.Drops)
		final := p.Destination
		if p.Original.IsValid() && isBeforeNAT(b) {
			p.Destination = p.Original
		}
		p.isTranslatedBack = p.Direction == Forwarded && p.State == Established && (b.Hook == unix.NF_INET_PRE_ROUTING || b.Hook == inetIngress)
		w.base(b.Name, policy, &v)
		if p.isTranslatedBack { // a rule about the pod's address does not see it, so this is no doubt
			v.MayDrop = v.MayDrop[:known]
		}
		p.isTranslatedBack = false
		for i := dropped; i < len(v.Drops); i++ {
			v.Drops[i].SeesOriginal = p.Destination != final
		}
		p.Destination = final
	}
	if p.Direction != Frame && !p.IsARP {
		f.addLegacy(&p, &v)
	}
	return v, nlconn.Explain(f.err, "read nftables rules")
}
