// Package cluster finds the other nodes of a cluster. Its interface Registry has three
// implementations: Kubernetes' Node objects, etcd in flannel's layout, and a directory of JSON files.
//
// A registry reports snapshots, not events, so that a lost event has no lasting effect.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
)

// Node is the record that a node publishes for the others. The fields are flannel's, so that nodes
// of both programs can share a cluster.
type Node struct {
	// Name is the node's name in its registry: the name of the Node object or of the file, or the
	// record's key in etcd.
	Name string `json:"name"`
	// PublicIP and PublicIPv6 are the addresses to which the other nodes send
	// tunnelled packets, and the next hops of host-gw. One is invalid when the node
	// does not have that family.
	PublicIP   netip.Addr `json:"publicIP,omitzero"`
	PublicIPv6 netip.Addr `json:"publicIPv6,omitzero"`
	// PodCIDRs are the node's pod networks, at most one of each family, IPv4 first.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	// BackendType is "vxlan" or "host-gw". Other values are kept as they are read.
	BackendType string `json:"backendType"`
	// BackendData and BackendV6Data are the backend's JSON: for wireguard WireGuard, for vxlan
	// {"VNI":1,"VtepMAC":"…"}, "null" for host-gw.
	BackendData   json.RawMessage `json:"backendData,omitempty"`
	BackendV6Data json.RawMessage `json:"backendV6Data,omitempty"`
	// Author says who wrote the record. Acquire sets it.
	Author Author `json:"author,omitzero"`
}

// Family returns the public address of one family, and its backend data.
func (n *Node) Family(v6 bool) (public netip.Addr, data json.RawMessage) {
	if v6 {
		return n.PublicIPv6, n.BackendV6Data
	}
	return n.PublicIP, n.BackendData
}

// PodCIDR returns the pod network of one family.
func (n *Node) PodCIDR(v6 bool) (p netip.Prefix, ok bool) {
	for _, p := range n.PodCIDRs {
		if p.Addr().Is6() == v6 {
			return p, true
		}
	}
	return p, false
}

// Address returns the address by which flannel identifies the node in etcd: the IPv4 address, or the IPv6 address if
// there is no IPv4 address.
func (n *Node) Address() netip.Addr {
	if n.PublicIP.IsValid() {
		return n.PublicIP
	}
	return n.PublicIPv6
}

// SameAddress reports whether two nodes have the same Address.
func (n *Node) SameAddress(o *Node) bool { return n.Address().IsValid() && n.Address() == o.Address() }

// Overrides are the settings that operators make by annotations of a Node object.
type Overrides struct {
	// NodeIP and NodeIPv6 replace the values of the flags --public-ip and --public-ipv6.
	NodeIP, NodeIPv6 netip.Addr
	// PublishIP and PublishIPv6 are published instead of the node's own addresses,
	// for a node behind NAT. Acquire publishes and returns them.
	PublishIP, PublishIPv6 netip.Addr
}

// Remote is a Registry on servers.
type Remote interface {
	// CloseFrom closes the connections from addresses that the node has lost. Requests on them would
	// wait for an answer that cannot arrive.
	CloseFrom(lost func(netip.Addr) bool)
}

// Snapshot is the whole content of a registry at one time. It does not change after
// it was reported.
type Snapshot struct {
	// Config is the network's configuration, or nil in Kubernetes, where it is a file of the node.
	Config *Config
	// Nodes are all nodes with a record, including this one, in the order of names. Snapshots share
	// the nodes that did not change between them.
	Nodes []*Node
	// Faults has, by name, the reasons why entries are not in Nodes. A name that begins with "/" is
	// that of the configuration, of which Config is the last valid version.
	Faults map[string]error
	// Overrides are those of this node.
	Overrides Overrides
}

// Registry is a registry that is opened for one node. Its methods may be called concurrently: Acquire
// is also called while Watch runs, and Watch may begin before the first Acquire.
type Registry interface {
	// Acquire publishes the node and returns it as it is stored. If PodCIDRs is empty, the registry
	// chooses the networks, or returns the assigned ones. Acquire is idempotent: it repairs a
	// record that is missing or was changed, and writes nothing if the record is correct.
	// ErrNotAssigned means that the caller must wait until Watch reports a snapshot. Watch does so
	// when this node's entry has changed, even if the snapshot is equal to the last one.
	Acquire(ctx context.Context, want Node) (Node, error)
	// Watch reports the state of all nodes after each change, until ctx ends, and returns ctx's error. It
	// also renews the lease of Acquire. The first snapshot is complete. If the registry cannot be reached,
	// Watch reports that, and retries with growing intervals and jitter.
	Watch(ctx context.Context, to *Relay) error
	// Ready informs the registry that this node's pod network works. In Kubernetes it clears the
	// condition NetworkUnavailable. Other registries do nothing.
	Ready(ctx context.Context) error
	// Release removes the record that Acquire published.
	Release(ctx context.Context) error
	// Close ends every connection.
	Close() error
	Ranges
}

var (
	// ErrNotAssigned means that another program, which assigns pod networks, has not assigned this
	// node's yet.
	ErrNotAssigned = errors.New("no pod network assigned")
	// ErrConflict means that another node, which the text names, has the requested subnet.
	ErrConflict = errors.New("held by another node")
	// ErrFull means that no subnet of the network is free.
	ErrFull = errors.New("no free subnet")
	// ErrUnavailable means that the registry does not answer, or refuses temporarily.
	ErrUnavailable = errors.New("registry unavailable")
	// ErrInvalid means that a value is invalid. The text names the field.
	ErrInvalid = errors.New("invalid")
)
