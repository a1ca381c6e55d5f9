// Package netpolicy computes from NetworkPolicies, namespaces and pods which packets the pods of a node may
// receive and send. It has no I/O. See docs/design.md, "Network policy".
package netpolicy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
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

// Policy is a NetworkPolicy of networking.k8s.io/v1, with defaults, valid.
type Policy struct {
	Namespace, Name string
	// Pods selects pods of the namespace.
	Pods Selector
	// Isolates is true for each direction in which the selected pods may only communicate as Allows says.
	Isolates [2]bool
	Allows   [2][]Rule
	// compiled has the chains by direction. It is computed on first use.
	compiled [2]*compiled
}

// Rule allows connections from or to one of the peers at one of the ports. Without peers it allows all peers, and without
// ports all ports.
type Rule struct {
	Peers []Peer
	Ports []Port
}

// Peer is a set of pods, or a network.
type Peer struct {
	// Namespaces and Pods select pods. They are not used if Network is valid.
	Namespaces, Pods Selector
	Network          netip.Prefix
	Except           []netip.Prefix
}

// Port is a port or a range of ports of a protocol, or with First and Name zero all ports.
type Port struct {
	Protocol    string // "TCP", "UDP" or "SCTP"
	First, Last uint16
	// Name is the name of a port of the server's pod.
	Name string
}

// Is reports whether a pod has a UID. A runtime has another UID of a static pod than the API: the hash of its file.
// An attachment that was recorded without a UID is of any pod of its name.
func (p *Pod) Is(uid string) bool {
	return uid == "" || uid == p.UID || uid == p.StaticUID && p.StaticUID != ""
}

// Pod is a pod as far as policies depend on it.
type Pod struct {
	Namespace, Name, UID string
	// StaticUID is the UID that kubelet gives the runtime for a static pod.
	StaticUID string
	// Node is the name of the pod's node.
	Node      string
	Labels    map[string]string
	Addresses []netip.Addr
	Ports     []PodPort
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

// hasAddresses reports whether the pod's addresses are its own.
func (p *Pod) hasAddresses() bool { return !p.HostNetwork && !p.Finished }

// equal reports whether policies see no difference between two versions of a pod.
func (p *Pod) equal(o *Pod) bool {
	return p.UID == o.UID && p.Node == o.Node && p.StaticUID == o.StaticUID && p.hasAddresses() == o.hasAddresses() && equalLabels(p.Labels, o.Labels) &&
		slices.Equal(p.Addresses, o.Addresses) && slices.Equal(p.Ports, o.Ports)
}

// NameLabel is the label with its name that the API server gives each namespace.
const NameLabel = "kubernetes.io/metadata.name"

// Object is an object of a file: a NetworkPolicy or a Namespace.
type Object struct {
	Policy *Policy
	// Namespace is the name of a namespace, with Labels.
	Namespace string
	Labels    map[string]string
}

// ID returns the kind and the name of the object.
func (o *Object) ID() string {
	if o.Policy != nil {
		return "NetworkPolicy " + o.Policy.Namespace + "/" + o.Policy.Name
	}
	return "Namespace " + o.Namespace
}

// Decode reads an object from JSON, with defaults and validation as the API server has them. All faults are reported.
func Decode(doc []byte) (*Object, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string            `json:"name"`
			Namespace string            `json:"namespace"`
			Labels    map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(doc, &head); err != nil {
		return nil, err
	}
	switch {
	case head.Metadata.Name == "":
		return nil, fmt.Errorf("%s without metadata.name", head.Kind)
	case head.APIVersion == "v1" && head.Kind == "Namespace":
		var f faults
		f.labels("metadata.labels", head.Metadata.Labels)
		return &Object{Namespace: head.Metadata.Name, Labels: head.Metadata.Labels}, f.err("namespace " + head.Metadata.Name)
	case head.APIVersion == "networking.k8s.io/v1" && head.Kind == "NetworkPolicy":
		if head.Metadata.Namespace == "" {
			head.Metadata.Namespace = "default"
		}
		var spec Spec
		if err := strict(head.Spec, &spec); err != nil {
			return nil, fmt.Errorf("spec: %w", err)
		}
		p, err := spec.Policy(head.Metadata.Namespace, head.Metadata.Name)
		return &Object{Policy: p}, err
	}
	return nil, fmt.Errorf("apiVersion %q, kind %q: want networking.k8s.io/v1 NetworkPolicy or v1 Namespace", head.APIVersion, head.Kind)
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
