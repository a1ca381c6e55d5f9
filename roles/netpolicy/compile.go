package netpolicy

import (
	"math"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/podchain"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// compiled are the kernel's objects for one direction of a policy.
type compiled struct {
	// name is that of the policy's chain, or "" if the policy allows nothing.
	name string
	// chains are the policy's chain and those that it jumps to.
	chains []*podfilter.Chain
	// rules are those of the policy's chain, and origins the numbers of the policy's rules from which they follow.
	rules   []podfilter.Rule
	origins []int
	// ranges are the sets of ports and of networks.
	ranges []*podfilter.Set
	// groups are the sets of pods.
	groups []groupKey
	// network is the policy's.
	network string
}

// groupKey identifies a group of pods: those of a selector, or those that have a named port. If nodes is set, it is a group of
// nodes.
type groupKey struct {
	// namespaces and pods are the canonical forms of selectors.
	namespaces, pods string
	nodes            bool
	// port and protocol are of a named port. The group consists of pods of this node if local is set.
	port, protocol string
	local          bool
	// network is that of the pods' addresses, or "" for the cluster's network.
	network string
	// selects has the selectors. Equal keys have equal selectors.
	selects *[2]label.Selector
}

// text returns the key without selects.
func (k *groupKey) text() string {
	where := "all"
	switch {
	case k.local:
		where = "local"
	case k.nodes:
		where = "nodes"
	}
	parts := []string{k.namespaces, k.pods, k.port, k.protocol, where}
	if k.network != "" {
		parts = append(parts, k.network)
	}
	return strings.Join(parts, "\n")
}

// setName returns the name of the group's sets without the family.
func (k *groupKey) setName() string {
	kind := "a"
	if k.port != "" {
		kind = "e"
	}
	return podchain.Name(kind, k.text())
}

// compile returns the objects of a policy for one direction.
func (p *Policy) compile(d Direction) *compiled {
	if p.compiled[d] != nil {
		return p.compiled[d]
	}
	c := &compiled{network: p.Network}
	for i := range p.Allows[d] {
		c.add(i, c.rule(&p.Allows[d][i], d, "accept"))
	}
	if len(c.rules) > 0 {
		own := podchain.New("policy", c.rules)
		c.name, c.chains = own.Name, append(c.chains, own)
	}
	p.compiled[d] = c
	return c
}

// maxPasses bounds the verdicts for which the objects of a policy are kept: those of earlier NetworkPolicies are not used any more.
const maxPasses = 1000

// compile returns the objects of a policy for one direction. pass is the verdict that leads to the next tier.
func (p *ClusterPolicy) compile(d Direction, pass string) *compiled {
	if c := p.compiled[d][pass]; c != nil {
		return c
	}
	c := p.build(d, pass)
	c.name = p.chain(d).Named(pass)
	c.chains = append(c.chains, &podfilter.Chain{Name: c.name, Rules: c.rules})
	if p.compiled[d] == nil || len(p.compiled[d]) == maxPasses {
		p.compiled[d] = map[string]*compiled{}
	}
	p.compiled[d][pass] = c
	return c
}

// chain returns the policy's chain.
func (p *ClusterPolicy) chain(d Direction) *podchain.ClusterChain {
	if p.chains[d] == nil {
		p.chains[d] = &podchain.ClusterChain{
			Name:   podchain.New("cluster", p.build(d, "pass").rules).Name,
			Passes: slices.ContainsFunc(p.Rules[d], func(r ClusterRule) bool { return r.Action == Pass }),
		}
	}
	return p.chains[d]
}

func (p *ClusterPolicy) build(d Direction, pass string) *compiled {
	c := &compiled{}
	for i := range p.Rules[d] {
		r := &p.Rules[d][i]
		rules := c.rule(&r.Rule, d, map[Action]string{Accept: "accept", Deny: podfilter.Denied, Pass: pass}[r.Action])
		for j := range rules {
			rules[j].Comment = r.Name
		}
		c.add(i, rules)
	}
	return c
}

// add appends rules that follow from a rule of the policy.
func (c *compiled) add(origin int, rules []podfilter.Rule) {
	c.rules = append(c.rules, rules...)
	for range rules {
		c.origins = append(c.origins, origin)
	}
}

// rule returns rules with a verdict for what a rule of the policy matches: each port with each peer, or, if there are several
// of both, each port with a jump to a chain of the peers.
func (c *compiled) rule(r *Rule, d Direction, verdict string) []podfilter.Rule {
	peers, ports := c.peers(r.Peers, d), c.portMatches(r.Ports, d)
	if len(ports) == 1 || len(peers) <= 1 {
		var rules []podfilter.Rule
		for _, port := range ports {
			for _, peer := range peers {
				rules = append(rules, port.with(peer, verdict)...)
			}
		}
		return rules
	}
	own := make([]podfilter.Rule, len(peers))
	for i, peer := range peers {
		own[i] = podfilter.Rule{Peer: peer, Verdict: verdict}
	}
	sub := podchain.New("peers", own)
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

// protocols are those with ports.
func protocols() []string { return []string{"TCP", "UDP", "SCTP"} }

func protocolNumber(protocol string) uint8 {
	switch protocol {
	case "UDP":
		return unix.IPPROTO_UDP
	case "SCTP":
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

// portMatches returns matches for any of the ports, one for those of a protocol that have a number.
func (c *compiled) portMatches(ports []Port, d Direction) []portMatch {
	if len(ports) == 0 {
		return []portMatch{{}}
	}
	var matches []portMatch
	numbers := map[string][]podfilter.Range{}
	for _, p := range ports {
		if p.Name != "" {
			k := groupKey{port: p.Name, protocol: p.Protocol, local: d == Ingress, network: c.network}
			c.groups = append(c.groups, k)
			matches = append(matches, portMatch{podfilter.Rule{Protocol: protocolNumber(p.Protocol)}, k.setName()})
			continue
		}
		if p.First == 0 {
			p.Last = math.MaxUint16
		}
		numbers[p.Protocol] = append(numbers[p.Protocol], podfilter.PortRange(p.First, p.Last))
	}
	for _, protocol := range protocols() {
		all := podfilter.Merged(numbers[protocol])
		if len(all) == 0 {
			continue
		}
		m := portMatch{Rule: podfilter.Rule{Protocol: protocolNumber(protocol)}}
		first, last := all[0].Ports()
		switch {
		case len(all) > 1:
			m.Ports = c.rangesOf(podfilter.Ports, false, all)
		case first > 0: // else it is any port
			m.First, m.Last = first, last
		}
		matches = append(matches, m)
	}
	return matches
}

// rangesOf returns the name of a set of ranges.
func (c *compiled) rangesOf(kind podfilter.Kind, v6 bool, all []podfilter.Range) string {
	prefix, suffix := "r", ""
	if kind == podfilter.Networks {
		prefix, suffix = "n", podfilter.Suffix(v6)
	}
	s := podfilter.NewRanges(func(contents string) string { return podchain.Name(prefix, contents) + suffix }, kind, v6, all)
	c.ranges = append(c.ranges, s)
	return s.Name
}

// peers returns matches for any of the peers: one for the networks of each family, and one for each group of pods and family. There is none
// if the exceptions of the networks leave nothing.
func (c *compiled) peers(peers []Peer, d Direction) []podfilter.Peer {
	if len(peers) == 0 {
		return []podfilter.Peer{{}}
	}
	var matches []podfilter.Peer
	var networks [2][]podfilter.Range // of IPv4 and IPv6
	for i := range peers {
		p := &peers[i]
		if p.Network.IsValid() {
			var except []podfilter.Range
			for _, n := range p.Except {
				except = append(except, podfilter.NetworkRange(n))
			}
			family := len(p.Network.Addr().AsSlice()) / net.IPv6len // 0 for IPv4
			networks[family] = append(networks[family], podfilter.NetworkRange(p.Network).Without(except)...)
			continue
		}
		k := groupKey{namespaces: p.Namespaces.String(), pods: p.Pods.String(), nodes: p.Nodes, selects: &[2]label.Selector{p.Namespaces, p.Pods}, network: c.network}
		c.groups = append(c.groups, k)
		for _, v6 := range []bool{false, true} {
			matches = append(matches, podfilter.Peer{Server: d == Egress, V6: v6, Set: k.setName() + podfilter.Suffix(v6)})
		}
	}
	for i, v6 := range []bool{false, true} {
		all := podfilter.Merged(networks[i])
		if len(all) == 0 {
			continue
		}
		m := podfilter.Peer{Server: d == Egress, V6: v6}
		if one := all[0].Network(); len(all) == 1 && one.IsValid() {
			m.In = one
		} else {
			m.Set = c.rangesOf(podfilter.Networks, v6, all)
		}
		matches = append(matches, m)
	}
	return matches
}
