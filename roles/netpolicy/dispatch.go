package netpolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/podchain"
	"github.com/cnibox/cnibox/netops/podfilter"
)

// The order of NetworkPolicies has no effect, since they only allow. So the chain of a pod with many policies looks up which of them can allow
// a connection by its protocol and the server's port. Policies that allow all ports, or ports by name, follow, one by one.
const (
	// minPolicies is the number of policies from which a map costs a packet less than a jump to each of those in the map, of which there
	// must be two.
	minPolicies, minDispatched = 3, 2
	// maxJumps bounds how often the map leads to a policy, on average. The kernel follows each way through all chains at each change, so a
	// map of policies whose ranges overlap in many ways would make changes slow.
	maxJumps = 2
)

// span is a range of ports that a policy allows.
type span struct {
	first, last uint16
	policy      int
}

// spans returns the ports that a policy allows in one direction by protocol, or nil if they do not follow from it alone.
func (p *Policy) spans(d Direction, policy int) map[string][]span {
	ports := map[string][]span{}
	for i := range p.Allows[d] {
		if len(p.Allows[d][i].Ports) == 0 {
			return nil
		}
		for _, port := range p.Allows[d][i].Ports {
			if port.Name != "" || port.First == 0 {
				return nil
			}
			ports[port.Protocol] = append(ports[port.Protocol], span{port.First, port.Last, policy})
		}
	}
	return ports
}

// reach is a range of ports and the policies that allow some of each.
type reach struct {
	first, last uint16
	policies    []int
}

// reaches divides all ports by the policies that allow them. It gives up if the policies of all of them are more than most.
func reaches(all []span, most int) (out []reach, ok bool) {
	change := map[int]map[int]int{} // by the first port with the change
	note := func(port, policy, by int) {
		if change[port] == nil {
			change[port] = map[int]int{}
		}
		change[port][policy] += by
	}
	for _, s := range all {
		note(int(s.first), s.policy, 1)
		note(int(s.last)+1, s.policy, -1)
	}
	open, jumps := map[int]int{}, 0
	for _, port := range slices.Sorted(maps.Keys(change)) {
		if n := len(out); n > 0 && out[n-1].last == 0 {
			out[n-1].last = uint16(port - 1)
		}
		for policy, by := range change[port] {
			open[policy] += by
			if open[policy] == 0 {
				delete(open, policy)
			}
		}
		policies := slices.Sorted(maps.Keys(open))
		n := len(out)
		switch {
		case n > 0 && int(out[n-1].last)+1 == port && slices.Equal(out[n-1].policies, policies):
			out[n-1].last = 0
		case len(policies) > 0:
			out = append(out, reach{first: uint16(port), policies: policies})
			jumps += len(policies)
		}
		if jumps > most {
			return nil, false
		}
	}
	return out, true
}

// podObjects returns the chains of the pods that exactly these policies select, with the maps of the chain that the NetworkPolicies share.
// The names of the chains do not depend on the maps, which follow from the policies: an ADD without the agent knows only these names.
func (t *Table) podObjects(tiers *podchain.Tiers, namespace string, d Direction) *compiled {
	c := &compiled{chains: tiers.PodChains()}
	if len(tiers.Isolating) == 0 {
		return c
	}
	for _, ranges := range []bool{true, false} {
		if c.divide(t.policies[namespace], tiers.Isolating, d, ranges) {
			break
		}
	}
	return c
}

// divide replaces the jumps to the policies of the last chain by maps, or changes nothing and returns false. Without ranges it leaves
// policies with ranges of ports to the others.
func (c *compiled) divide(policies map[string]*Policy, isolating []podchain.Chosen, d Direction, ranges bool) bool {
	byProtocol, others, dispatched := map[string][]span{}, []podchain.Chosen(nil), 0
	for i, policy := range isolating {
		if policy.Chain == "" {
			continue
		}
		_, name, _ := strings.Cut(policy.Name, "/")
		spans := policies[name].spans(d, i)
		if spans == nil || !ranges && hasRange(spans) {
			others = append(others, policy)
			continue
		}
		dispatched++
		for protocol, of := range spans {
			byProtocol[protocol] = append(byProtocol[protocol], of...)
		}
	}
	if dispatched < minDispatched || dispatched+len(others) < minPolicies {
		return false
	}
	left, own := maxJumps*dispatched, compiled{}
	var rules []podfilter.Rule
	for _, protocol := range protocols() {
		all, ok := reaches(byProtocol[protocol], left)
		if !ok {
			return false
		}
		for _, r := range all {
			left -= len(r.policies)
		}
		if len(all) > 0 {
			rules = append(rules, own.dispatch(protocolNumber(protocol), all, isolating)...)
		}
	}
	c.chains[len(c.chains)-1].Rules = slices.Concat(rules, podchain.Jumps(others), podchain.Isolated())
	c.chains, c.ranges = append(c.chains, own.chains...), append(c.ranges, own.ranges...)
	return true
}

func hasRange(byProtocol map[string][]span) bool {
	for _, of := range byProtocol {
		if slices.ContainsFunc(of, func(s span) bool { return s.first != s.last }) {
			return true
		}
	}
	return false
}

// dispatch returns a rule for each address family that jumps to the policies of a server's port.
func (c *compiled) dispatch(protocol uint8, all []reach, isolating []podchain.Chosen) (rules []podfilter.Rule) {
	to, text := make([]podchain.Chosen, len(all)), ""
	for i, r := range all {
		to[i] = isolating[r.policies[0]]
		if len(r.policies) > 1 {
			var of []podchain.Chosen
			for _, policy := range r.policies {
				of = append(of, isolating[policy])
			}
			shared := podchain.New("ports", podchain.Jumps(of))
			if !slices.ContainsFunc(c.chains, func(o *podfilter.Chain) bool { return o.Name == shared.Name }) {
				c.chains = append(c.chains, shared)
			}
			to[i] = podchain.Chosen{Chain: shared.Name}
		}
		text += fmt.Sprintf("%d-%d %q\n", r.first, r.last, to[i])
	}
	for _, v6 := range []bool{false, true} {
		s := podfilter.NewSet(podchain.Name(strings.TrimSuffix(podfilter.MapPrefix, "_"), text)+podfilter.Suffix(v6), podfilter.Verdicts, v6)
		for i, r := range all {
			s.AddVerdict(r.first, r.last, "jump "+to[i].Chain+podfilter.Suffix(v6), to[i].Name)
		}
		c.ranges = append(c.ranges, s)
		rules = append(rules, podfilter.Rule{Protocol: protocol, Map: s.Name, Peer: podfilter.Peer{V6: v6}})
	}
	return rules
}
