// Package netpolicy computes from NetworkPolicies, namespaces and pods which packets the pods of a node may
// receive and send. It has no I/O. See docs/design.md, "Network policy".
package netpolicy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// Direction is that of a connection, seen from the pod that a policy selects.
type Direction int

// The directions.
const (
	Egress Direction = iota
	Ingress
)

// String returns the direction as in policyTypes.
func (d Direction) String() string {
	if d == Egress {
		return "Egress"
	}
	return "Ingress"
}

// Policy is a NetworkPolicy of networking.k8s.io/v1, with defaults, valid. A MultiNetworkPolicy is one for each of its networks.
type Policy struct {
	Namespace, Name string
	// Network is that of a MultiNetworkPolicy, as NAMESPACE/NAME, or "" for the cluster's network.
	Network string
	// Pods selects pods of the namespace.
	Pods label.Selector
	// Isolates is true for each direction in which the selected pods may only communicate as Allows says.
	Isolates [2]bool
	Allows   [2][]Rule
	// compiled has the chains by direction, and chains the names of the first. Both are computed on first use.
	compiled [2]*compiled
	chains   [2]*string
}

// chainName returns the name of the policy's chain in one direction. It does not keep what it compiles for that: few policies of a large
// cluster select pods of this node.
func (p *Policy) chainName(d Direction) *string {
	if p.chains[d] == nil {
		before := p.compiled[d]
		name := p.compile(d).name
		p.chains[d], p.compiled[d] = &name, before
	}
	return p.chains[d]
}

// Rule allows connections from or to one of the peers at one of the ports. Without peers it allows all peers, and without
// ports all ports.
type Rule struct {
	Peers []Peer
	Ports []Port
}

// Peer is a set of pods or nodes, or a network.
type Peer struct {
	// Namespaces and Pods select pods. They are not used if Network is valid.
	Namespaces, Pods label.Selector
	// Nodes is true if Pods selects nodes.
	Nodes   bool
	Network netip.Prefix
	Except  []netip.Prefix
}

// Node is a node of the cluster as far as policies depend on it.
type Node struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
}

// NodeAddress is an address in the status of a node in JSON.
type NodeAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// NewNode returns a node. Addresses that are names are left out.
func NewNode(name string, labels map[string]string, addresses []NodeAddress) *Node {
	n := &Node{Name: name, Labels: labels}
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text.Address); err == nil && !slices.Contains(n.Addresses, a.Unmap()) {
			n.Addresses = append(n.Addresses, a.Unmap())
		}
	}
	return n
}

// Port is a port or a range of ports of a protocol, or with First and Name zero all ports.
type Port struct {
	Protocol    string // "TCP", "UDP" or "SCTP"
	First, Last uint16
	// Name is the name of a port of the server's pod.
	Name string
}

// Is reports whether the pod has a UID, see choice.Pod.Is.
func (p *Pod) Is(uid string) bool { return p.saved().Is(uid) }

// Pod is a pod as far as policies depend on it.
type Pod struct {
	Namespace, Name, UID string
	// Container is the name of a container that is known by the label of its attachment, because two may have one name.
	Container string
	// StaticUID is the UID that kubelet gives the runtime for a static pod.
	StaticUID string
	// Node is the name of the pod's node.
	Node      string
	Labels    map[string]string
	Addresses []netip.Addr
	// Networks has the addresses on other networks than the cluster's.
	Networks map[string][]netip.Addr
	Ports    []PodPort
	// HostNetwork pods have the node's address. Finished pods (Succeeded, Failed) keep an address that may be another
	// pod's. The addresses of both are no pod's.
	HostNetwork, Finished bool
}

// PodPort is a named port of a pod.
type PodPort struct {
	Name, Protocol string
	Port           uint16
}

// Key returns "namespace/name".
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// Title returns the key that people know the pod by.
func (p *Pod) Title() string { return p.Namespace + "/" + cmp.Or(p.Container, p.Name) }

// hasAddresses reports whether the pod's addresses are its own.
func (p *Pod) hasAddresses() bool { return !p.HostNetwork && !p.Finished }

// equal reports whether policies see no difference between two versions of a pod.
func (p *Pod) equal(o *Pod) bool {
	return p.UID == o.UID && p.Node == o.Node && p.StaticUID == o.StaticUID && p.hasAddresses() == o.hasAddresses() && maps.Equal(p.Labels, o.Labels) &&
		slices.Equal(p.Addresses, o.Addresses) && maps.EqualFunc(p.Networks, o.Networks, slices.Equal) && slices.Equal(p.Ports, o.Ports)
}

// Object is an object of a file.
type Object struct {
	// ID is the kind and the name.
	ID string
	// Policy or Cluster is set if it is such a policy.
	Policy  *Policy
	Cluster *ClusterPolicy
	// PutInto adds the object to a Table, or replaces it.
	PutInto, RemoveFrom func(*Table)
}

// Decode reads an object from JSON, with defaults and validation as the API server has them. All faults are reported.
func Decode(doc []byte) (*Object, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name        string            `json:"name"`
			Namespace   string            `json:"namespace"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec   json.RawMessage `json:"spec"`
		Status struct {
			Addresses []NodeAddress `json:"addresses"`
		} `json:"status"`
	}
	if err := json.Unmarshal(doc, &head); err != nil {
		return nil, err
	}
	name := head.Metadata.Name
	if name == "" {
		return nil, fmt.Errorf("%s without metadata.name", head.Kind)
	}
	var f faults
	o := &Object{ID: head.Kind + " " + name}
	switch head.APIVersion + " " + head.Kind {
	case "v1 Namespace":
		f.labels("metadata.labels", head.Metadata.Labels)
		o.PutInto = func(t *Table) { t.PutNamespace(name, head.Metadata.Labels) }
		o.RemoveFrom = func(t *Table) { t.RemoveNamespace(name) }
		return o, f.err("namespace " + name)
	case "v1 Node":
		f.labels("metadata.labels", head.Metadata.Labels)
		o.PutInto = func(t *Table) { t.PutNode(NewNode(name, head.Metadata.Labels, head.Status.Addresses)) }
		o.RemoveFrom = func(t *Table) { t.RemoveNode(name) }
		return o, f.err("node " + name)
	case "networking.k8s.io/v1 NetworkPolicy":
		var spec Spec
		if err := strict(head.Spec, &spec); err != nil {
			return nil, &FieldError{Path: "spec", Err: err}
		}
		p, err := spec.Policy(cmp.Or(head.Metadata.Namespace, "default"), name)
		o.ID, o.Policy = head.Kind+" "+p.Namespace+"/"+name, p
		o.PutInto, o.RemoveFrom = func(t *Table) { t.PutPolicy(p) }, func(t *Table) { t.RemovePolicy(p.Namespace, name) }
		return o, err
	case "k8s.cni.cncf.io/v1beta1 MultiNetworkPolicy", "k8s.cni.cncf.io/v1beta2 MultiNetworkPolicy":
		var spec Spec
		if err := strict(head.Spec, &spec); err != nil {
			return nil, &FieldError{Path: "spec", Err: err}
		}
		namespace, networks := cmp.Or(head.Metadata.Namespace, "default"), head.Metadata.Annotations[NetworksKey]
		all, err := spec.Multi(namespace, name, networks)
		if len(all) == 0 {
			err = &FieldError{Path: "metadata.annotations", Err: fmt.Errorf("%s names no network: set it to NAME or NAMESPACE/NAME of networks, separated by commas", NetworksKey)}
		}
		o.ID = head.Kind + " " + namespace + "/" + name
		o.PutInto, o.RemoveFrom = func(t *Table) { t.PutMulti(namespace, name, all) }, func(t *Table) { t.PutMulti(namespace, name, nil) }
		return o, err
	case "policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy": // with the same fields
		var spec ClusterSpec
		if err := strict(head.Spec, &spec); err != nil {
			return nil, &FieldError{Path: "spec", Err: err}
		}
		p, err := spec.Policy(name)
		o.Cluster = p
		o.PutInto, o.RemoveFrom = func(t *Table) { t.PutClusterPolicy(p) }, func(t *Table) { t.RemoveClusterPolicy(name) }
		return o, err
	}
	if head.Kind == "AdminNetworkPolicy" || head.Kind == "BaselineAdminNetworkPolicy" {
		return nil, fmt.Errorf("%s is not enforced: write it as a ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1, which replaced it", head.Kind)
	}
	return nil, fmt.Errorf("apiVersion %.80q, kind %.80q: want networking.k8s.io/v1 NetworkPolicy, k8s.cni.cncf.io/v1beta2 MultiNetworkPolicy, policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy, v1 Namespace or v1 Node",
		head.APIVersion, head.Kind)
}

// strict decodes an object and refuses fields that it does not know, as kubectl does: a misspelt selector would select all pods.
func strict(text json.RawMessage, into any) error {
	if len(text) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}
