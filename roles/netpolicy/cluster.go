package netpolicy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/podchain"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// ClusterPolicy is a ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1. v1alpha2 has the same fields.
type ClusterPolicy struct {
	Name string
	// Admin policies precede NetworkPolicies. The others, of the tier Baseline, follow them for the pods that no
	// NetworkPolicy isolates.
	Admin    bool
	Priority int32
	// Namespaces and Pods select the pods that the policy is for.
	Namespaces, Pods label.Selector
	// Rules are in their order. A direction without rules has no effect.
	Rules [2][]ClusterRule
	// Unenforced are the paths of valid parts that cnibox does not enforce: domain names. Their rules fail closed.
	Unenforced []string
	// chains and compiled are computed on first use, compiled by the verdict that leads to the next tier.
	chains   [2]*podchain.ClusterChain
	compiled [2]map[string]*compiled
}

// SelectsNodes reports whether a peer of the policy selects nodes.
func (p *ClusterPolicy) SelectsNodes() bool {
	return slices.ContainsFunc(slices.Concat(p.Rules[:]...), func(r ClusterRule) bool {
		return slices.ContainsFunc(r.Peers, func(q Peer) bool { return q.Nodes })
	})
}

// ClusterRule is a rule of a ClusterPolicy.
type ClusterRule struct {
	Rule
	Name   string
	Action Action
}

// Action is what a rule does with a connection.
type Action string

// The actions.
const (
	Accept Action = "Accept"
	Deny   Action = "Deny"
	Pass   Action = "Pass" // to the next tier
)

// ClusterSpec is the specification of a ClusterNetworkPolicy in JSON.
type ClusterSpec struct {
	Tier     string          `json:"tier"`
	Priority *int32          `json:"priority"`
	Subject  json.RawMessage `json:"subject"`
	Ingress  json.RawMessage `json:"ingress"`
	Egress   json.RawMessage `json:"egress"`
}

// ErrNoList means that the rules of a direction are no list.
var ErrNoList = errors.New("is no list of rules")

type clusterRule struct {
	Name      string            `json:"name"`
	Action    Action            `json:"action"`
	From      []clusterPeer     `json:"from"`
	To        []clusterPeer     `json:"to"`
	Protocols []clusterProtocol `json:"protocols"`
}

type clusterPeer struct {
	Namespaces *LabelSelector `json:"namespaces"`
	Pods       *struct {
		NamespaceSelector LabelSelector `json:"namespaceSelector"`
		PodSelector       LabelSelector `json:"podSelector"`
	} `json:"pods"`
	Nodes       *LabelSelector `json:"nodes"`
	Networks    []string       `json:"networks"`
	DomainNames []string       `json:"domainNames"`
}

type clusterProtocol struct {
	TCP                  *clusterPorts `json:"tcp"`
	UDP                  *clusterPorts `json:"udp"`
	SCTP                 *clusterPorts `json:"sctp"`
	DestinationNamedPort string        `json:"destinationNamedPort"`
}

type clusterPorts struct {
	DestinationPort *struct {
		Number *int32 `json:"number"`
		Range  *struct {
			Start int32 `json:"start"`
			End   int32 `json:"end"`
		} `json:"range"`
	} `json:"destinationPort"`
}

// The bounds of the API.
const (
	maxClusterItems    = 25
	maxClusterPriority = 1000
	maxClusterRuleName = 100
)

// Policy returns the policy. A rule with a part that is invalid or not known fails closed: with Accept it matches nothing, and
// with another action it denies all. If the policy's tier or subject is not understood, the policy is for all pods,
// accepts nothing, and denies what its rules match. Rules that are no list deny all. Domain names are valid, and not known.
func (s *ClusterSpec) Policy(name string) (*ClusterPolicy, error) {
	var f faults
	p := &ClusterPolicy{Name: name, Admin: s.Tier != "Baseline"}
	if s.Tier != "Admin" && s.Tier != "Baseline" {
		f.add("spec.tier", "%q is not Admin or Baseline", s.Tier)
	}
	var subject clusterPeer
	if err := strict(s.Subject, &subject); err != nil {
		f.add("spec.subject", "%w", err)
	}
	if peers := subject.peers(&f, "spec.subject", true); len(f) == 0 {
		p.Namespaces, p.Pods = peers[0].Namespaces, peers[0].Pods
	}
	closed := len(f) > 0
	if s.Priority != nil {
		p.Priority = *s.Priority
	}
	if s.Priority == nil || p.Priority < 0 || p.Priority > maxClusterPriority {
		f.add("spec.priority", "needs a number from 0 to %d", maxClusterPriority)
	}
	for d, list := range [2]json.RawMessage{Egress: s.Egress, Ingress: s.Ingress} {
		path := "spec." + strings.ToLower(Direction(d).String())
		var rules []json.RawMessage
		if len(list) > 0 && json.Unmarshal(list, &rules) != nil {
			f.add(path, "%w", ErrNoList)
			p.Rules[d] = []ClusterRule{{Name: strings.TrimPrefix(path, "spec."), Action: Deny}}
		}
		f.bound(path, len(rules), 0)
		for i, text := range rules {
			r := p.rule(&f, Direction(d), fmt.Sprintf("%s[%d]", path, i), text)
			switch {
			case r.Action == "", closed && r.Action == Accept:
				continue
			case closed:
				r.Action = Deny
			}
			p.Rules[d] = append(p.Rules[d], r)
		}
	}
	return p, f.err("cluster network policy " + name)
}

// rule returns a rule. It has no action if it matches nothing.
func (p *ClusterPolicy) rule(f *faults, d Direction, path string, text json.RawMessage) ClusterRule {
	var s clusterRule
	before := len(*f) + len(p.Unenforced)
	if err := strict(text, &s); err != nil {
		f.add(path, "%w", err)
		var head struct {
			Name   string
			Action Action
		}
		_ = json.Unmarshal(text, &head) // what it lacks, Deny stands for
		s = clusterRule{Name: head.Name, Action: head.Action}
	}
	r := ClusterRule{Name: cmp.Or(s.Name, strings.TrimPrefix(path, "spec.")), Action: s.Action}
	if len(s.Name) > maxClusterRuleName {
		f.add(path+".name", "is longer than %d characters", maxClusterRuleName)
	}
	if !slices.Contains([]Action{Accept, Deny, Pass}, s.Action) {
		f.add(path+".action", "%q is not Accept, Deny or Pass", s.Action)
	}
	key, peers, others := "to", s.To, s.From
	if d == Ingress {
		key, peers, others = "from", s.From, s.To
	}
	if len(others) > 0 {
		f.add(path, "has the peers of the other direction: use %q", key)
	}
	f.bound(path+"."+key, len(peers), 1)
	named := true // only pods have named ports
	for i := range peers {
		q, at := &peers[i], fmt.Sprintf("%s.%s[%d]", path, key, i)
		if q.DomainNames != nil {
			p.Unenforced = append(p.Unenforced, at+".domainNames")
		}
		named = named && (q.Pods != nil || q.Namespaces != nil)
		r.Peers = append(r.Peers, q.peers(f, at, d == Ingress)...)
	}
	if s.Protocols != nil {
		f.bound(path+".protocols", len(s.Protocols), 1)
	}
	for i := range s.Protocols {
		at := fmt.Sprintf("%s.protocols[%d]", path, i)
		if s.Protocols[i].DestinationNamedPort != "" && !named {
			f.add(at+".destinationNamedPort", "excludes nodes, networks and domainNames: only pods have named ports")
		}
		r.Ports = append(r.Ports, s.Protocols[i].ports(f, at)...)
	}
	switch {
	case len(*f)+len(p.Unenforced) == before:
		return r
	case s.Action == Accept:
		return ClusterRule{}
	}
	return ClusterRule{Name: r.Name, Action: Deny}
}

// peers returns the peers that s stands for.
func (s *clusterPeer) peers(f *faults, path string, onlyPods bool) (all []Peer) {
	set := 0
	if s.Namespaces != nil {
		set++
		all = append(all, Peer{Namespaces: s.Namespaces.selector(f, path+".namespaces")})
	}
	if s.Pods != nil {
		set++
		all = append(all, Peer{
			Namespaces: s.Pods.NamespaceSelector.selector(f, path+".pods.namespaceSelector"), Pods: s.Pods.PodSelector.selector(f, path+".pods.podSelector"),
		})
	}
	if onlyPods && set != 1 {
		f.add(path, "needs namespaces or pods")
		return all
	}
	if s.Nodes != nil {
		set++
		all = append(all, Peer{Nodes: true, Pods: s.Nodes.selector(f, path+".nodes")})
	}
	if s.Networks != nil {
		set++
		f.bound(path+".networks", len(s.Networks), 1)
	}
	for i, text := range s.Networks {
		all = append(all, Peer{Network: network(f, fmt.Sprintf("%s.networks[%d]", path, i), text)})
	}
	if s.DomainNames != nil {
		set++
		f.bound(path+".domainNames", len(s.DomainNames), 1)
	}
	if set != 1 || onlyPods && len(all) != 1 {
		f.add(path, "needs one of namespaces, pods, nodes, networks and domainNames, and no other field")
	}
	return all
}

// ports returns the ports that s stands for. A named port may be of each protocol.
func (s *clusterProtocol) ports(f *faults, path string) (all []Port) {
	set := 0
	for protocol, ports := range map[string]*clusterPorts{"TCP": s.TCP, "UDP": s.UDP, "SCTP": s.SCTP} {
		if ports != nil {
			set++
			all = append(all, ports.port(f, protocol, path+"."+strings.ToLower(protocol)))
		}
	}
	if s.DestinationNamedPort != "" {
		set++
		for _, protocol := range protocols() {
			all = append(all, Port{Protocol: protocol, Name: s.DestinationNamedPort})
		}
	}
	if set != 1 {
		f.add(path, "needs one of tcp, udp, sctp and destinationNamedPort, and no other field")
	}
	return all
}

func (s *clusterPorts) port(f *faults, protocol, path string) Port {
	at := s.DestinationPort
	if at == nil || (at.Number == nil) == (at.Range == nil) {
		f.add(path+".destinationPort", "needs number or range")
		return Port{}
	}
	first, last := at.Number, at.Number
	if r := at.Range; r != nil {
		first, last = &r.Start, &r.End
		if r.Start >= r.End {
			f.add(path+".destinationPort.range", "start must be less than end")
		}
	}
	if *first < 1 || *last > math.MaxUint16 {
		f.add(path+".destinationPort", "has a port that is not 1 to %d", math.MaxUint16)
	}
	return Port{Protocol: protocol, First: uint16(*first), Last: uint16(*last)}
}

// bound adds a fault if a list has too few or too many items.
func (f *faults) bound(path string, n, least int) {
	if n < least || n > maxClusterItems {
		f.add(path, "has %d items: use %d to %d", n, least, maxClusterItems)
	}
}
