// Package podtable defines the nftables table that enforces policies on pods: its base chains, its maps of
// pods, and the encoding of the rules in the chains of policies. See docs/design.md, "Network policy".
package podtable

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Rule is one rule in the chain of a policy. It matches a connection by the addresses and ports of its
// tracked tuple: those are the same for packets of both directions, and they are the client's address before
// and the server's after translation. So a policy that begins to forbid a connection stops both directions.
type Rule struct {
	// Protocol is IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP, or 0 for any protocol.
	Protocol uint8
	// Ports is the name of a set of server ports, or "".
	Ports string
	// Map is the name of a map from server ports to verdicts, or "". Then the rule has no other verdict.
	Map string
	// First and Last are a range of server ports. They are 0 without a range.
	First, Last uint16
	// Named is the name of a set of (server address, port), or "".
	Named string
	// Peer is the other end of the connection.
	Peer Peer
	// Self matches a connection from a pod of this node to itself.
	Self bool
	// ToNode and OfNode match packets that the node itself receives and sends: these have no other interface. Those that IPVS sends to
	// a server have none either, and the source of another host.
	ToNode, OfNode bool
	// Verdict is "accept", "return", "jump CHAIN", "goto CHAIN" or Denied.
	Verdict string
	// Comment is shown by nft.
	Comment string
}

// Peer matches the client or the server of a connection.
type Peer struct {
	// V6 selects the address family of Set, In, and of the Rule's Named and Map.
	V6 bool
	// Server selects the server's address. It is false for the client's.
	Server bool
	// Set is the name of a set of addresses, or "".
	Set string
	// In is a network, or the zero value.
	In netip.Prefix
}

// within reports whether In leaves out an address of the family.
func (p *Peer) within() bool { return p.In.IsValid() && p.In.Bits() > 0 }

// IsOf reports whether the rule can match packets of an address family.
func (r *Rule) IsOf(v6 bool) bool {
	any := !r.Self && r.Named == "" && r.Map == "" && r.Peer.Set == "" && !r.Peer.In.IsValid()
	return any || r.Peer.V6 == v6
}

// String returns the rule as nft lists it.
func (r *Rule) String() string {
	var words []string
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if r.Protocol != 0 {
		say("meta l4proto %s", nft.ProtocolName(r.Protocol))
	}
	ip := "ip"
	if r.Peer.V6 {
		ip = "ip6"
	}
	if r.ToNode {
		say("oif 0")
	}
	if r.OfNode {
		say("iif 0 fib saddr type local")
	}
	if r.Self {
		say("ct original %s saddr . ct reply %s saddr @%s", ip, ip, podSet(self, r.Peer.V6))
	}
	if r.Ports != "" {
		say("ct reply proto-src @%s", r.Ports)
	}
	if r.Last != 0 {
		say("ct reply proto-src %s", portText(r.First, r.Last))
	}
	if r.Named != "" {
		say("ct reply %s saddr . ct reply proto-src @%s", ip, r.Named)
	}
	end := "ct original"
	if r.Peer.Server {
		end = "ct reply"
	}
	if r.Peer.Set != "" {
		say("%s %s saddr @%s", end, ip, r.Peer.Set)
	}
	if r.Peer.within() {
		say("%s %s saddr %s", end, ip, prefixText(r.Peer.In))
	}
	if r.counts() {
		say("counter")
	}
	if r.Map != "" {
		say("ct reply proto-src vmap @%s", r.Map)
	} else {
		say("%s", r.Verdict)
	}
	if r.Comment != "" {
		say("comment %q", r.Comment)
	}
	return strings.Join(words, " ")
}

// counts reports whether the rule has a counter: it decides. A counter costs 5 ns for each packet that the rule matches.
func (r *Rule) counts() bool {
	verb, _, _ := strings.Cut(r.Verdict, " ")
	return verb == "accept" || verb == "goto"
}

func portText(first, last uint16) string {
	if first == last {
		return strconv.Itoa(int(first))
	}
	return fmt.Sprintf("%d-%d", first, last)
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// Chain is a chain of rules. Its name follows from its rules, so two chains with one name are equal. The kernel has one for each address
// family of pods.
type Chain struct {
	Name  string
	Rules []Rule
}

// Of returns the kernel's chain for a family. Its name and those of the chains that it leads to end with the family.
func (c *Chain) Of(v6 bool) *Chain {
	own := &Chain{Name: c.Name + Suffix(v6)}
	for i := range c.Rules {
		if r := c.Rules[i]; r.IsOf(v6) {
			if strings.Contains(r.Verdict, " ") && r.Verdict != Denied {
				r.Verdict += Suffix(v6)
			}
			own.Rules = append(own.Rules, r)
		}
	}
	return own
}

// Count returns the number of rules of the kernel's chain for a family.
func (c *Chain) Count(v6 bool) (n int) {
	for i := range c.Rules {
		if c.Rules[i].IsOf(v6) {
			n++
		}
	}
	return n
}

// String returns the chain as nft lists it.
func (c *Chain) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chain %s {\n", c.Name)
	for i := range c.Rules {
		fmt.Fprintf(&b, "\t%s\n", &c.Rules[i])
	}
	b.WriteString("}\n")
	return b.String()
}
