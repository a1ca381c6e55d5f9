package netpolicy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/podfilter"
)

// compiled are the kernel's objects for one direction of a policy. They follow from the policy alone.
type compiled struct {
	// chains are the policy's chain, which is the first, and those that it jumps to. There is none if the policy allows
	// nothing.
	chains []*podfilter.Chain
	// ports are the sets of ports.
	ports []*podfilter.Set
	// groups are the sets of pods.
	groups []groupKey
}

// groupKey identifies a group of pods: those of a selector, or those that have a named port.
type groupKey struct {
	// namespaces and pods are the canonical forms of selectors.
	namespaces, pods string
	// port and protocol are of a named port. The group consists of pods of this node if local is set.
	port, protocol string
	local          bool
	// selects has the selectors. Equal keys have equal selectors.
	selects *[2]Selector
}

// text returns the key without selects.
func (k *groupKey) text() string {
	where := "all"
	if k.local {
		where = "local"
	}
	return strings.Join([]string{k.namespaces, k.pods, k.port, k.protocol, where}, "\n")
}

// setName returns the name of the group's sets without the family.
func (k *groupKey) setName() string {
	kind := "a"
	if k.port != "" {
		kind = "e"
	}
	return name(kind, k.text())
}

// nameBytes is the length of the hash in a name.
const nameBytes = 12

// name returns the name of an object that follows from its contents.
func name(kind, contents string) string {
	sum := sha256.Sum256([]byte(contents))
	return kind + "_" + hex.EncodeToString(sum[:nameBytes])
}

// chain returns a chain, whose name follows from its rules.
func chain(kind string, rules []podfilter.Rule) *podfilter.Chain {
	var text strings.Builder
	for i := range rules {
		text.WriteString(rules[i].String())
		text.WriteByte('\n')
	}
	return &podfilter.Chain{Name: name(kind, text.String()), Rules: rules}
}

// compile returns the objects of a policy for one direction.
func (p *Policy) compile(d Direction) *compiled {
	if p.compiled[d] != nil {
		return p.compiled[d]
	}
	c := &compiled{}
	var rules []podfilter.Rule
	for i := range p.Allows[d] {
		rules = append(rules, c.rule(&p.Allows[d][i], d)...)
	}
	if len(rules) > 0 {
		c.chains = slices.Insert(c.chains, 0, chain("policy", rules))
	}
	p.compiled[d] = c
	return c
}

// rule returns rules that accept what a rule of the policy allows: each port with each peer, or, if there are several of
// both, each port with a jump to a chain of the peers.
func (c *compiled) rule(r *Rule, d Direction) []podfilter.Rule {
	peers := c.peers(r.Peers, d)
	ports := c.portMatches(r.Ports, d)
	if len(ports) == 1 || len(peers) == 1 {
		var rules []podfilter.Rule
		for _, port := range ports {
			for _, peer := range peers {
				rules = append(rules, port.with(peer.Peer, peer.verdict)...)
			}
		}
		return rules
	}
	own := make([]podfilter.Rule, len(peers))
	for i, peer := range peers {
		own[i] = podfilter.Rule{Peer: peer.Peer, Verdict: peer.verdict}
	}
	sub := chain("peers", own)
	c.chains = append(c.chains, sub)
	var rules []podfilter.Rule
	for _, port := range ports {
		rules = append(rules, port.with(podfilter.Peer{}, "jump "+sub.Name)...)
	}
	return rules
}

// portMatch is a rule with its match of the ports only. named is the name of the sets of a named port, without the family.
type portMatch struct {
	podfilter.Rule
	named string
}

// with returns the rules that match the port and a peer. An empty peer is any.
func (m portMatch) with(peer podfilter.Peer, verdict string) []podfilter.Rule {
	r := m.Rule
	r.Peer, r.Verdict = peer, verdict
	if m.named == "" {
		return []podfilter.Rule{r}
	}
	var rules []podfilter.Rule
	for _, v6 := range []bool{false, true} {
		if any := peer.Set == "" && !peer.In.IsValid(); any || peer.V6 == v6 {
			r.Peer.V6, r.Named = v6, m.named+podfilter.Suffix(v6)
			rules = append(rules, r)
		}
	}
	return rules
}

func protocolNumber(protocol string) uint8 {
	switch protocol {
	case "UDP":
		return unix.IPPROTO_UDP
	case "SCTP":
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

// portMatches returns matches for any of the ports. Several single ports of a protocol become one set.
func (c *compiled) portMatches(ports []Port, d Direction) []portMatch {
	if len(ports) == 0 {
		return []portMatch{{}}
	}
	var matches []portMatch
	single := map[string][]uint16{}
	for _, p := range ports {
		m := portMatch{Rule: podfilter.Rule{Protocol: protocolNumber(p.Protocol)}}
		switch {
		case p.Name != "":
			k := groupKey{port: p.Name, protocol: p.Protocol, local: d == Ingress}
			m.named = k.setName()
			c.groups = append(c.groups, k)
		case p.First != 0 && p.First == p.Last:
			single[p.Protocol] = append(single[p.Protocol], p.First)
			continue
		case p.First != 0:
			m.First, m.Last = p.First, p.Last
		}
		matches = append(matches, m)
	}
	for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
		all := slices.Compact(slices.Sorted(slices.Values(single[protocol])))
		m := portMatch{Rule: podfilter.Rule{Protocol: protocolNumber(protocol)}}
		switch len(all) {
		case 0:
			continue
		case 1:
			m.First, m.Last = all[0], all[0]
		default:
			m.Ports = c.portSet(all)
		}
		matches = append(matches, m)
	}
	return matches
}

// portSet returns the name of a set of ports.
func (c *compiled) portSet(ports []uint16) string {
	var text strings.Builder
	for _, p := range ports {
		text.WriteString(podfilter.Key(netip.Addr{}, p))
	}
	s := podfilter.NewSet(name("p", text.String()), podfilter.Ports, false)
	for _, p := range ports {
		s.Add(podfilter.Key(netip.Addr{}, p))
	}
	c.ports = append(c.ports, s)
	return s.Name
}

// peerMatch is a match of a peer, and the verdict that accepts it.
type peerMatch struct {
	podfilter.Peer
	verdict string
}

// peers returns matches for any of the peers.
func (c *compiled) peers(peers []Peer, d Direction) []peerMatch {
	if len(peers) == 0 {
		return []peerMatch{{verdict: "accept"}}
	}
	var matches []peerMatch
	for i := range peers {
		p := &peers[i]
		m := peerMatch{podfilter.Peer{Server: d == Egress, In: p.Network}, "accept"}
		if p.Network.IsValid() {
			m.V6 = p.Network.Addr().Is6()
			if len(p.Except) > 0 {
				m.verdict = "jump " + c.without(m.Peer, p.Except).Name
			}
			matches = append(matches, m)
			continue
		}
		k := groupKey{namespaces: p.Namespaces.String(), pods: p.Pods.String(), selects: &[2]Selector{p.Namespaces, p.Pods}}
		c.groups = append(c.groups, k)
		for _, v6 := range []bool{false, true} {
			m.V6, m.Set = v6, k.setName()+podfilter.Suffix(v6)
			matches = append(matches, m)
		}
	}
	return matches
}

// without returns a chain that accepts all but some networks. One rule cannot have them all: the kernel bounds its expressions.
func (c *compiled) without(peer podfilter.Peer, networks []netip.Prefix) *podfilter.Chain {
	var rules []podfilter.Rule
	for _, n := range networks {
		peer.In = n
		rules = append(rules, podfilter.Rule{Peer: peer, Verdict: "return"})
	}
	all := chain("block", append(rules, podfilter.Rule{Verdict: "accept"}))
	c.chains = append(c.chains, all)
	return all
}

// Chosen is a policy that isolates a pod in a direction: its name, and the name of its chain, which is "" if it allows
// nothing.
type Chosen struct{ Name, Chain string }

// PodChain returns the chain of the pods that exactly these policies isolate. They must be sorted.
func PodChain(all []Chosen) *podfilter.Chain {
	var rules []podfilter.Rule
	for _, c := range all {
		if c.Chain != "" {
			rules = append(rules, podfilter.Rule{Verdict: "jump " + c.Chain, Comment: c.Name})
		}
	}
	return chain("pods", append(rules, podfilter.Rule{Verdict: "drop"}))
}
