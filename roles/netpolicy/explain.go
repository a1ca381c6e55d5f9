package netpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/podfilter"
)

// Flow is a connection: the client's address before, and the server's after translation.
type Flow struct {
	Client   netip.Addr `json:"client"`
	Server   netip.Addr `json:"server"`
	Protocol string     `json:"protocol"`
	// Port is the server's, or 0 for a protocol without ports.
	Port uint16 `json:"port,omitempty"`
	// ToNode is true if the server is this node itself.
	ToNode bool `json:"-"`
}

// String returns the connection in one line.
func (f Flow) String() string { return fmt.Sprintf("%s -> %s %s", f.Client, f.Target(), f.Protocol) }

// Target returns the server's address, and its port if there is one.
func (f Flow) Target() string {
	if f.Port == 0 {
		return f.Server.String()
	}
	return netip.AddrPortFrom(f.Server, f.Port).String()
}

// Verdict is what the policies of one pod decide about a Flow.
type Verdict struct {
	// Direction is that in which the pod's policies see the connection.
	Direction string `json:"direction"`
	Pod       string `json:"pod"`
	Allowed   bool   `json:"allowed"`
	// Policies are those that select the pod in this direction, in the order of evaluation. NetworkPolicies have a namespace.
	Policies []string `json:"policies"`
	// Policy and Rule decide. They are empty if no rule matches.
	Policy string `json:"policy,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Why    string `json:"why"`
	// Packets is what the deciding rule of the kernel has counted, or nil if that is not known. Pods with the same policies share it.
	Packets *uint64 `json:"packets,omitempty"`
	// Change is what would change the verdict.
	Change string `json:"change"`
}

// Explanation is what policies decide about a Flow.
type Explanation struct {
	Flow
	Allowed bool `json:"allowed"`
	// Verdicts are those of the client's and of the server's policies, if these are pods of the node.
	Verdicts []Verdict `json:"verdicts"`
}

// Denial returns the first verdict that denies the connection, or nil.
func (e *Explanation) Denial() *Verdict {
	i := slices.IndexFunc(e.Verdicts, func(v Verdict) bool { return !v.Allowed })
	if i < 0 {
		return nil
	}
	return &e.Verdicts[i]
}

// String says in one line what decides: "ingress of default/web: isolated by default/web, and no rule of these matches".
func (v *Verdict) String() string {
	text := v.Direction + " of " + v.Pod + ": "
	if v.Policy != "" {
		text += v.Policy + ", " + v.Rule + ": "
	}
	return text + v.Why
}

// Explainer evaluates the kernel's objects of a Table.
type Explainer struct {
	// Counters are those of the kernel's rules by chain. It may be nil.
	Counters map[string][]podfilter.Counter
	table    *Table
	rules    *podfilter.Ruleset
	pods     map[netip.Addr]Local
}

// NewExplainer returns an Explainer for the pods of a Table's node.
func NewExplainer(t *Table) *Explainer {
	e := &Explainer{table: t, rules: t.Ruleset(), pods: map[netip.Addr]Local{}}
	for _, l := range t.local {
		for _, a := range l.Addresses {
			e.pods[a] = l
		}
	}
	return e
}

// Explain evaluates the policies.
func (e *Explainer) Explain(f Flow) Explanation {
	out := Explanation{Flow: f, Allowed: true, Verdicts: []Verdict{}}
	for d, own := range [2]netip.Addr{Egress: f.Client, Ingress: f.Server} {
		if l, ok := e.pods[own]; ok {
			v := e.verdict(f, Direction(d), l, own)
			out.Verdicts, out.Allowed = append(out.Verdicts, v), out.Allowed && v.Allowed
		}
	}
	return out
}

// Packet returns the connection of a packet that was denied, and the verdict that denies it: the packet is one of the client or of the
// server. Without a verdict the connection is that of a client. A protocol is one of netops: "tcp", "icmpv6".
func (e *Explainer) Packet(from, to netip.AddrPort, protocol string) (Flow, *Verdict) {
	protocol = strings.ToUpper(strings.TrimSuffix(protocol, "v6"))
	first := Flow{Client: from.Addr(), Server: to.Addr(), Protocol: protocol, Port: to.Port()}
	for _, f := range []Flow{first, {Client: to.Addr(), Server: from.Addr(), Protocol: protocol, Port: from.Port()}} {
		explanation := e.Explain(f)
		if v := explanation.Denial(); v != nil {
			return f, v
		}
	}
	return first, nil
}

// chainOf returns the chain of an address for a direction. An ADD that has not ended has its chain, too.
func (e *Explainer) chainOf(a netip.Addr, d Direction) string {
	p, ok := e.rules.Pods[a]
	if !ok {
		p = e.rules.Pending[a]
	}
	if d == Egress {
		return p.Egress
	}
	return p.Ingress
}

// verdict evaluates the policies of a pod with the address own.
func (e *Explainer) verdict(f Flow, d Direction, l Local, own netip.Addr) Verdict {
	v := Verdict{Direction: strings.ToLower(d.String()), Pod: e.table.title(l), Policies: []string{}}
	f.ToNode = f.ToNode && !l.isElsewhere
	if f.ToNode && !e.rules.Form.Node {
		v.Allowed, v.Why, v.Change = true, "NetworkPolicies do not apply to the pod's own node", "an egress rule of a ClusterNetworkPolicy"
		return v
	}
	name := e.chainOf(own, d)
	switch name {
	case "":
		v.Allowed, v.Why, v.Change = true, "no policy selects the pod", "a policy that selects it"
		return v
	case podfilter.Deny:
		v.Packets = e.packets(l, name, 0)
		v.Why, v.Change = "the agent does not know the pod or its namespace", "run 'cnibox doctor'"
		return v
	}
	pod := e.table.pods[l.Namespace][l.Name]
	isolating := e.table.selecting(pod, l.Network, d)
	admin, last := e.table.clusterSelecting(pod, l.Network, d)
	for _, p := range admin {
		v.Policies = append(v.Policies, p.Name)
	}
	for _, p := range isolating {
		v.Policies, last = append(v.Policies, p.Namespace+"/"+p.Name), nil
	}
	for _, p := range last {
		v.Policies = append(v.Policies, p.Name)
	}
	w := walk{rules: e.rules, flow: f, rule: -1}
	if slices.Contains(protocols(), f.Protocol) {
		w.protocol = protocolNumber(f.Protocol)
	}
	v.Allowed = w.run(name) == "accept"
	v.Policy, v.Packets = w.policy, e.packets(l, w.chain, w.index)
	cluster := e.table.cluster[w.policy]
	switch {
	case cluster != nil:
		r := cluster.Rules[d][cluster.build(d, "").origins[w.rule]]
		v.Rule, v.Why = r.Name, "a rule matches: "+string(r.Action)
		v.Change = fmt.Sprintf("a rule before it, or a ClusterNetworkPolicy of its tier with a priority lower than %d", cluster.Priority)
	case w.policy != "":
		n := e.table.policies[l.Namespace][strings.TrimPrefix(w.policy, l.Namespace+"/")].compile(d).origins[w.rule]
		v.Rule, v.Why, v.Change = fmt.Sprintf("%s[%d]", v.Direction, n), "a rule allows it", "the policy without this rule, unless another policy allows it"
	case v.Allowed && f.ToNode:
		v.Why, v.Change = "no rule of a ClusterNetworkPolicy matches, and NetworkPolicies do not apply to the pod's own node", "an egress rule of a ClusterNetworkPolicy"
	case v.Allowed && len(isolating) > 0:
		v.Why, v.Change = "a NetworkPolicy lets a pod reach itself", "a ClusterNetworkPolicy of the tier Admin"
	case v.Allowed:
		v.Why, v.Change = "no rule matches, and no NetworkPolicy isolates the pod", "a NetworkPolicy that selects the pod"
	default:
		v.Why = "isolated by " + strings.Join(v.Policies[len(admin):], ", ") + ", and no rule of these matches"
		v.Change = cmp.Or(w.near(isolating, d), "a rule for this peer and port in a NetworkPolicy that selects the pod")
	}
	if len(w.passed) > 0 {
		v.Why += ", and before that Pass in " + strings.Join(w.passed, ", ")
	}
	return v
}

// packets returns the counter of a rule of a pod of this node.
func (e *Explainer) packets(l Local, chain string, index int) *uint64 {
	if c, known := e.counter(chain, index); known && !l.isElsewhere {
		return &c.Packets
	}
	return nil
}

// counter returns the counter of a rule of a chain. The kernel has one for each family.
func (e *Explainer) counter(chain string, index int) (sum podfilter.Counter, known bool) {
	c := e.rules.Chains[chain]
	if c == nil { // podfilter.Deny
		c = &podfilter.Chain{Rules: make([]podfilter.Rule, 1)}
	}
	for _, of := range []struct {
		name string
		v6   bool
	}{{chain, false}, {chain + podfilter.Suffix(false), false}, {chain + podfilter.Suffix(true), true}} {
		before := podfilter.Chain{Rules: c.Rules[:index]}
		if at, all := before.Count(of.v6), e.Counters[of.name]; c.Rules[index].IsOf(of.v6) && at < len(all) {
			sum.Packets, sum.Bytes, known = sum.Packets+all[at].Packets, sum.Bytes+all[at].Bytes, true
		}
	}
	return sum, known
}

// RuleCount has what the kernel's rules for a rule of a policy have counted: packets of both directions. Rules with the same peers and ports
// share the kernel's rules.
type RuleCount struct {
	Policy    string `json:"policy"`
	Direction string `json:"direction"`
	Rule      string `json:"rule"`
	Action    Action `json:"action"`
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
}

// Count returns the counts of the rules of the policies that select pods of this node.
func (e *Explainer) Count() []RuleCount {
	all := []RuleCount{}
	add := func(policy string, d int, rules []ClusterRule, compiled ...*compiled) {
		first, direction := len(all), strings.ToLower(Direction(d).String())
		for i := range rules {
			name := cmp.Or(rules[i].Name, fmt.Sprintf("%s[%d]", direction, i))
			all = append(all, RuleCount{Policy: policy, Direction: direction, Rule: name, Action: rules[i].Action})
		}
		used := false
		for _, c := range compiled {
			if e.rules.Chains[c.name] == nil {
				continue
			}
			used = true
			for i, origin := range c.origins {
				// The ports of a rule have one chain of its peers.
				if again := i > 0 && origin == c.origins[i-1] && strings.HasPrefix(c.rules[i].Verdict, "jump "); !again {
					e.sum(c.name, i, &all[first+origin])
				}
			}
		}
		if !used {
			all = all[:first]
		}
	}
	for _, of := range e.table.policies {
		for _, p := range of {
			for d := range p.Allows {
				add(p.Namespace+"/"+p.Name, d, slices.Repeat([]ClusterRule{{Action: Accept}}, len(p.Allows[d])), p.compile(Direction(d)))
			}
		}
	}
	for _, p := range e.table.cluster {
		for d := range p.Rules {
			add(p.Name, d, p.Rules[d], slices.Collect(maps.Values(p.compiled[d]))...)
		}
	}
	sorting.Stable(all, func(a, b RuleCount) int {
		return cmp.Or(strings.Compare(a.Policy, b.Policy), strings.Compare(a.Direction, b.Direction))
	})
	return all
}

// sum adds the counters of a rule, and of the chain that it jumps to.
func (e *Explainer) sum(chain string, index int, to *RuleCount) {
	if target, jumps := strings.CutPrefix(e.rules.Chains[chain].Rules[index].Verdict, "jump "); jumps {
		for i := range e.rules.Chains[target].Rules {
			e.sum(target, i, to)
		}
	}
	c, _ := e.counter(chain, index)
	to.Packets, to.Bytes = to.Packets+c.Packets, to.Bytes+c.Bytes
}

// unmatched returns the packets that no rule of the NetworkPolicies matches that isolate the pods of a chain.
func (e *Explainer) unmatched(name string) uint64 {
	c := e.rules.Chains[name]
	if c == nil {
		return 0
	}
	last := len(c.Rules) - 1
	if target, goes := strings.CutPrefix(c.Rules[last].Verdict, "goto "); goes && target != podfilter.Deny {
		return e.unmatched(target)
	}
	if c.Rules[last].Verdict != podfilter.Denied {
		return 0
	}
	count, _ := e.counter(name, last)
	return count.Packets
}

// walk evaluates chains as the kernel does.
type walk struct {
	rules *podfilter.Ruleset
	flow  Flow
	// protocol is 0 for one without ports.
	protocol uint8
	// policy and rule are where the verdict is from: the comment of the last jump to a policy, and the number of a rule in its
	// chain. They are "" and -1 if the chain of the pod decides.
	policy string
	rule   int
	passed []string
	// chain and index are those of the kernel's rule that decides.
	chain string
	index int
}

// run returns the verdict of a chain, or "" if it ends without one.
func (w *walk) run(name string) string { return w.evaluate(name, w.rules.Chains[name].Rules) }

func (w *walk) evaluate(chain string, rules []podfilter.Rule) string {
	kind, _, _ := strings.Cut(chain, "_")
	for i := range rules {
		r := &rules[i]
		if !w.matches(r) {
			continue
		}
		verdict, policy := r.Verdict, r.Comment
		if r.Map != "" {
			verdict, policy = w.rules.Sets[r.Map].Verdict(w.flow.Port)
			verdict = strings.TrimSuffix(verdict, podfilter.Suffix(r.Peer.V6))
		}
		verb, target, _ := strings.Cut(verdict, " ")
		switch kind {
		case "pods", "ports":
			w.policy, w.rule = policy, -1
		case "policy", "cluster":
			w.rule = i
		}
		switch verb {
		case "return":
			return ""
		case "jump":
			if v := w.run(target); v != "" {
				return v
			}
		case "goto":
			if r.Verdict == podfilter.Denied {
				w.chain, w.index = chain, i
				return "drop"
			}
			if w.policy != "" {
				w.passed = append(w.passed, w.policy)
			}
			return w.run(target)
		default:
			w.chain, w.index = chain, i
			return verb
		}
	}
	return ""
}

func (w *walk) matches(r *podfilter.Rule) bool {
	has := func(set string, a netip.Addr, port uint16) bool {
		return w.rules.Sets[set].Contains(podfilter.Key(a, port))
	}
	f, peer := &w.flow, w.flow.Client
	if r.Peer.Server {
		peer = f.Server
	}
	switch {
	case r.OfNode, r.ToNode && !f.ToNode, r.Map != "" && !w.inMap(r), r.Self && (f.Client != f.Server || f.Client.Is6() != r.Peer.V6):
		return false
	case r.Protocol != 0 && r.Protocol != w.protocol,
		r.Ports != "" && !has(r.Ports, netip.Addr{}, f.Port),
		r.Last != 0 && (f.Port < r.First || f.Port > r.Last),
		r.Named != "" && !has(r.Named, f.Server, f.Port),
		r.Peer.Set != "" && !has(r.Peer.Set, peer, 0),
		r.Peer.In.IsValid() && !r.Peer.In.Contains(peer):
		return false
	}
	return true
}

// inMap reports whether the rule's map has the server's port.
func (w *walk) inMap(r *podfilter.Rule) bool {
	verdict, _ := w.rules.Sets[r.Map].Verdict(w.flow.Port)
	return verdict != "" && w.flow.Server.Is6() == r.Peer.V6
}

// near returns which rule matches the peer but not the port, or the port but not the peer, or "".
func (w *walk) near(policies []*Policy, d Direction) string {
	for _, p := range policies {
		for i := range p.Allows[d] {
			r := &p.Allows[d][i]
			c := compiled{network: p.Network}
			peer := w.evaluate("", c.rule(&Rule{Peers: r.Peers}, d, "accept")) == "accept"
			port := w.evaluate("", c.rule(&Rule{Ports: r.Ports}, d, "accept")) == "accept"
			what := map[bool]string{true: "the port, and not the peer", false: "the peer, and not the port"}[port]
			if peer != port {
				return fmt.Sprintf("%s[%d] of %s/%s, which matches %s", strings.ToLower(d.String()), i, p.Namespace, p.Name, what)
			}
		}
	}
	return ""
}

// Listed is a pod of the node with its policies.
type Listed struct {
	Pod       string       `json:"pod"`
	Addresses []netip.Addr `json:"addresses"`
	// Denied is true if the agent does not know the pod, so that it is denied everything.
	Denied bool `json:"denied,omitempty"`
	// Egress and Ingress are the policies in the order of evaluation.
	Egress  []string `json:"egress"`
	Ingress []string `json:"ingress"`
	// Unmatched are packets that no rule of the NetworkPolicies matches that isolate the pod. Pods with the same policies share it.
	Unmatched uint64 `json:"unmatchedPackets"`
}

// List returns the pods of the Table's node by their names.
func (e *Explainer) List() []Listed {
	all := []Listed{}
	for _, l := range e.table.local {
		one := Listed{Pod: e.table.title(l), Addresses: l.Addresses, Egress: []string{}, Ingress: []string{}}
		for _, a := range l.Addresses[:min(1, len(l.Addresses))] {
			out, in := e.verdict(Flow{Client: a}, Egress, l, a), e.verdict(Flow{Server: a}, Ingress, l, a)
			one.Egress, one.Ingress, one.Denied = out.Policies, in.Policies, e.chainOf(a, Egress) == podfilter.Deny
			one.Unmatched = e.unmatched(e.chainOf(a, Egress)) + e.unmatched(e.chainOf(a, Ingress))
		}
		all = append(all, one)
	}
	sorting.Func(all, func(a, b Listed) int { return strings.Compare(a.Pod, b.Pod) })
	return all
}
