package netpolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/podfilter"
)

// The order of NetworkPolicies has no effect, since they only allow. So the chain of a pod with many policies looks up which of them can allow
// a connection by its protocol and the server's port. Policies that allow other than a few single ports follow, one by one.
const (
	// minPolicies is the number of policies from which a map costs a packet less than a jump to each of those with single ports, of which
	// there must be two.
	minPolicies, minDispatched = 4, 2
	// maxPorts bounds the elements that a policy has in a map.
	maxPorts = 16
)

// singlePorts returns the ports that a policy allows in one direction by protocol. It returns nil if there are too many, or others than single
// ports with a number.
func (p *Policy) singlePorts(d Direction) map[string][]uint16 {
	ports, n := map[string][]uint16{}, 0
	for i := range p.Allows[d] {
		if len(p.Allows[d][i].Ports) == 0 {
			return nil
		}
		for _, port := range p.Allows[d][i].Ports {
			n++
			if n > maxPorts || port.Name != "" || port.First == 0 || port.First != port.Last {
				return nil
			}
			if !slices.Contains(ports[port.Protocol], port.First) {
				ports[port.Protocol] = append(ports[port.Protocol], port.First)
			}
		}
	}
	return ports
}

// podObjects returns the chains of the pods that exactly these policies select, with the maps of the chain that the NetworkPolicies share.
// The names of the chains do not depend on the maps, which follow from the policies: an ADD without the agent knows only these names.
func (t *Table) podObjects(tiers *Tiers, namespace string, d Direction) *compiled {
	c := &compiled{chains: tiers.PodChains()}
	if len(tiers.Isolating) == 0 {
		return c
	}
	byPort, others := map[string]map[uint16][]Chosen{}, []Chosen(nil)
	dispatched := 0
	for _, policy := range tiers.Isolating {
		if policy.Chain == "" {
			continue
		}
		ports := t.policies[namespace][strings.TrimPrefix(policy.Name, namespace+"/")].singlePorts(d)
		if ports == nil {
			others = append(others, policy)
			continue
		}
		dispatched++
		for protocol, of := range ports {
			for _, port := range of {
				if byPort[protocol] == nil {
					byPort[protocol] = map[uint16][]Chosen{}
				}
				byPort[protocol][port] = append(byPort[protocol][port], policy)
			}
		}
	}
	if dispatched < minDispatched || dispatched+len(others) < minPolicies {
		return c
	}
	rest := c.chains[len(c.chains)-1]
	rest.Rules = nil
	for _, protocol := range protocols() {
		if byPort[protocol] != nil {
			rest.Rules = append(rest.Rules, c.dispatch(protocolNumber(protocol), byPort[protocol])...)
		}
	}
	rest.Rules = append(append(rest.Rules, jumps(others)...), isolatedRules()...)
	return c
}

// dispatch returns a rule for each address family that jumps to the policies of a server's port.
func (c *compiled) dispatch(protocol uint8, byPort map[uint16][]Chosen) (rules []podfilter.Rule) {
	verdicts, text := map[uint16]Chosen{}, ""
	for _, port := range slices.Sorted(maps.Keys(byPort)) {
		to := byPort[port][0]
		if len(byPort[port]) > 1 {
			all := chain("ports", jumps(byPort[port]))
			c.chains = append(c.chains, all)
			to = Chosen{Chain: all.Name}
		}
		verdicts[port] = to
		text += fmt.Sprintf("%d %q\n", port, to)
	}
	for _, v6 := range []bool{false, true} {
		s := podfilter.NewSet(name(strings.TrimSuffix(podfilter.MapPrefix, "_"), text)+podfilter.Suffix(v6), podfilter.Verdicts, v6)
		for port, to := range verdicts {
			s.Add(podfilter.PortVerdict(port, "jump "+to.Chain+podfilter.Suffix(v6), to.Name))
		}
		c.ranges = append(c.ranges, s)
		rules = append(rules, podfilter.Rule{Protocol: protocol, Map: s.Name, Peer: podfilter.Peer{V6: v6}})
	}
	return rules
}
