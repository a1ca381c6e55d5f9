package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// Spec is the specification of a NetworkPolicy in JSON.
type Spec struct {
	PodSelector LabelSelector `json:"podSelector"`
	PolicyTypes []string      `json:"policyTypes"`
	Ingress     []specRule    `json:"ingress"`
	Egress      []specRule    `json:"egress"`
}

type specRule struct {
	From  []specPeer `json:"from"`
	To    []specPeer `json:"to"`
	Ports []specPort `json:"ports"`
}

type specPeer struct {
	PodSelector       *LabelSelector `json:"podSelector"`
	NamespaceSelector *LabelSelector `json:"namespaceSelector"`
	IPBlock           *struct {
		CIDR   string   `json:"cidr"`
		Except []string `json:"except"`
	} `json:"ipBlock"`
}

type specPort struct {
	Protocol *string         `json:"protocol"`
	Port     json.RawMessage `json:"port"`
	EndPort  *int32          `json:"endPort"`
}

// faults collects the faults of an object, each with its path.
type faults []error

func (f *faults) add(path, format string, args ...any) {
	*f = append(*f, &FieldError{Path: path, Err: fmt.Errorf(format, args...)})
}

func (f *faults) err(object string) error {
	if len(*f) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", object, errors.Join(*f...))
}

// Policy returns the policy with the API server's defaults. If the specification is invalid, the policy isolates the pods
// that it selects, or all of the namespace if the selector is invalid, and allows only what its valid rules say.
func (s *Spec) Policy(namespace, name string) (*Policy, error) {
	var f faults
	p := &Policy{Namespace: namespace, Name: name, Pods: s.PodSelector.selector(&f, "spec.podSelector")}
	if len(f) > 0 {
		p.Pods = label.Selector{}
	}
	types := s.PolicyTypes
	if len(types) == 0 {
		types = []string{"Ingress"}
		if len(s.Egress) > 0 {
			types = append(types, "Egress")
		}
	}
	if len(types) > 2 {
		f.add("spec.policyTypes", "has more than two entries")
	}
	for i, t := range types {
		switch t {
		case "Ingress":
			p.Isolates[Ingress] = true
		case "Egress":
			p.Isolates[Egress] = true
		default:
			f.add(fmt.Sprintf("spec.policyTypes[%d]", i), "%q is not Ingress or Egress", t)
			p.Isolates = [2]bool{true, true}
		}
	}
	for i := range s.Ingress {
		if r, ok := s.Ingress[i].rule(&f, namespace, fmt.Sprintf("spec.ingress[%d]", i), "from", s.Ingress[i].From); ok {
			p.Allows[Ingress] = append(p.Allows[Ingress], r)
		}
	}
	for i := range s.Egress {
		if r, ok := s.Egress[i].rule(&f, namespace, fmt.Sprintf("spec.egress[%d]", i), "to", s.Egress[i].To); ok {
			p.Allows[Egress] = append(p.Allows[Egress], r)
		}
	}
	return p, f.err("network policy " + namespace + "/" + name)
}

// NetworksKey is the annotation of a MultiNetworkPolicy with its networks, separated by commas. Without a namespace they are in
// that of the policy.
const NetworksKey = "k8s.v1.cni.cncf.io/policy-for"

// Multi returns the policies that a MultiNetworkPolicy with this annotation stands for: none if it names no network.
func (s *Spec) Multi(namespace, name, networks string) (all []*Policy, err error) {
	p, err := s.Policy(namespace, name)
	for one := range strings.SplitSeq(networks, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		if !strings.Contains(one, "/") {
			one = namespace + "/" + one
		}
		own := *p
		own.Network, own.Name = one, multiName(name, one)
		all = append(all, &own)
	}
	return all, err
}

// multiName returns the name of the policy for one network. A NetworkPolicy cannot have it.
func multiName(name, network string) string { return name + "@" + network }

// rule returns a rule, and false if it has faults.
func (s *specRule) rule(f *faults, namespace, path, peersKey string, peers []specPeer) (r Rule, ok bool) {
	before := len(*f)
	if len(s.From)+len(s.To) > len(peers) {
		f.add(path, "has the peers of the other direction: use %q", peersKey)
	}
	r.Peers, r.Ports = slices.Grow(r.Peers, len(peers)), slices.Grow(r.Ports, len(s.Ports))
	for i := range peers {
		r.Peers = append(r.Peers, peers[i].peer(f, namespace, fmt.Sprintf("%s.%s[%d]", path, peersKey, i)))
	}
	for i := range s.Ports {
		r.Ports = append(r.Ports, s.Ports[i].port(f, fmt.Sprintf("%s.ports[%d]", path, i)))
	}
	return r, len(*f) == before
}

func (s *specPeer) peer(f *faults, namespace, path string) (p Peer) {
	switch {
	case s.IPBlock != nil:
		if s.PodSelector != nil || s.NamespaceSelector != nil {
			f.add(path, "ipBlock excludes podSelector and namespaceSelector")
		}
		p.Network = network(f, path+".ipBlock.cidr", s.IPBlock.CIDR)
		for i, e := range s.IPBlock.Except {
			at := fmt.Sprintf("%s.ipBlock.except[%d]", path, i)
			n := network(f, at, e)
			if n.IsValid() && p.Network.IsValid() && (n.Bits() <= p.Network.Bits() || !p.Network.Overlaps(n)) {
				f.add(at, "%s is not a part of %s", e, s.IPBlock.CIDR)
			}
			p.Except = append(p.Except, n)
		}
	case s.PodSelector == nil && s.NamespaceSelector == nil:
		f.add(path, "needs podSelector, namespaceSelector or ipBlock")
	default:
		p.Namespaces = namespaceNamed(namespace)
		if s.NamespaceSelector != nil {
			p.Namespaces = s.NamespaceSelector.selector(f, path+".namespaceSelector")
		}
		if s.PodSelector != nil {
			p.Pods = s.PodSelector.selector(f, path+".podSelector")
		}
	}
	return p
}

func network(f *faults, path, text string) netip.Prefix {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		f.add(path, "%q is not a network: use for example 10.0.0.0/8", text)
		return netip.Prefix{}
	}
	return p.Masked()
}

// isPortName reports whether text has the form of a port's name (RFC 6335, section 5.1).
func isPortName(text string) bool {
	const longest = 15
	return label.IsWord(text, "-", false, longest) && !strings.Contains(text, "--") && strings.ContainsFunc(text, func(r rune) bool { return r >= 'a' })
}

func (s *specPort) port(f *faults, path string) (p Port) {
	p.Protocol = "TCP"
	if s.Protocol != nil {
		p.Protocol = *s.Protocol
	}
	if !slices.Contains(protocols(), p.Protocol) {
		f.add(path+".protocol", "%q is not TCP, UDP or SCTP", p.Protocol)
	}
	var number int32
	switch {
	case len(s.Port) == 0 || string(s.Port) == "null":
		if s.EndPort != nil {
			f.add(path+".endPort", "needs port")
		}
		return p
	case json.Unmarshal(s.Port, &number) == nil:
		if number < 1 || number > 65535 {
			f.add(path+".port", "%d is not a port", number)
		}
		p.First, p.Last = uint16(number), uint16(number)
	case json.Unmarshal(s.Port, &p.Name) == nil:
		if !isPortName(p.Name) {
			f.add(path+".port", "%q is not a name of a port", p.Name)
		}
	default:
		f.add(path+".port", "%s is not a number or a name", s.Port)
	}
	if s.EndPort == nil {
		return p
	}
	switch {
	case p.Name != "":
		f.add(path+".endPort", "excludes a named port")
	case *s.EndPort < number || *s.EndPort > 65535:
		f.add(path+".endPort", "%d is not a port of %d or more", *s.EndPort, number)
	default:
		p.Last = uint16(*s.EndPort)
	}
	return p
}
