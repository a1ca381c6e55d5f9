// Package cluster finds the other nodes of a cluster. One small interface covers
// three registries: Kubernetes' Node objects, etcd in flannel's layout, and a
// directory of JSON files.
//
// A registry reports snapshots, not events. The agent compares the wanted state with
// the kernel's, so a lost message has no lasting effect.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
)

// Node is what one node publishes for the others. The fields are flannel's, so that
// nodes of both programs can share a cluster.
type Node struct {
	// Name is the node's name in its registry: that of the Node object or the file.
	// In etcd, which has no names, it is the record's key.
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
	// BackendData and BackendV6Data are the backend's JSON: for vxlan
	// {"VNI":1,"VtepMAC":"…"}, "null" for host-gw.
	BackendData   json.RawMessage `json:"backendData,omitempty"`
	BackendV6Data json.RawMessage `json:"backendV6Data,omitempty"`
	// Overrides are not part of the record, which the node writes. Operators write them.
	Overrides Overrides `json:"-"`
}

// Overrides are what operators set by annotations of a Node object.
type Overrides struct {
	// NodeIP and NodeIPv6 replace the values of the flags --public-ip and --public-ipv6.
	NodeIP, NodeIPv6 netip.Addr
	// PublishIP and PublishIPv6 are published instead of the node's own addresses,
	// for a node behind NAT. Acquire publishes and returns them.
	PublishIP, PublishIPv6 netip.Addr
}

// OverrideReader is a Registry in which operators can set Overrides for a node.
type OverrideReader interface {
	// Overrides returns those of this node. It may be called before Acquire.
	Overrides(ctx context.Context) (Overrides, error)
}

// Snapshot is the whole content of a registry at one time. It does not change after
// it was reported.
type Snapshot struct {
	// Config is the network's configuration; nil in a registry that does not hold it.
	// In Kubernetes it is a file of the node.
	Config *Config
	// Nodes are all nodes that take part, this one included, ordered by name.
	Nodes []Node
	// Faults has, by name, the entries that are left out of Nodes, and the reason. A
	// name that begins with "/" is that of the configuration; its last valid form
	// stays in force.
	Faults map[string]error
}

// Update is what Watch reports: a new Snapshot, or an error while the registry cannot
// be reached. During an error the last snapshot stays in force.
type Update struct {
	Snapshot *Snapshot
	Err      error
}

// Registry is a registry, opened for one node. Its methods may be called
// concurrently: Acquire is also called while Watch runs, and Watch may begin before
// the first Acquire.
type Registry interface {
	// Config returns the network's configuration; nil when the registry does not hold it.
	Config(ctx context.Context) (*Config, error)
	// Acquire publishes the node and returns it as it is stored. If PodCIDRs is
	// empty, the registry chooses the networks, or returns the assigned ones. Acquire
	// is idempotent: it repairs what is missing or altered, and writes nothing if the
	// record is right. ErrNotAssigned means that the caller has to wait: Watch
	// reports a snapshot when something about this node has changed, even if the
	// snapshot is the same.
	Acquire(ctx context.Context, want Node) (Node, error)
	// Watch calls fn with the state of all nodes whenever it has changed, until ctx
	// is done. It also renews what Acquire obtained. The first snapshot is complete.
	// When the registry is down, Watch reports that and tries again with growing
	// intervals and jitter. A slow fn gets only the newest snapshot.
	Watch(ctx context.Context, fn func(Update)) error
	// Ready reports to the registry that this node's pod network works: in
	// Kubernetes, the NetworkUnavailable condition. Other registries do nothing.
	Ready(ctx context.Context) error
	// Release withdraws what Acquire published.
	Release(ctx context.Context) error
	// Close ends every connection.
	Close() error
}

var (
	// ErrNotAssigned: the node has no pod network yet. Another program assigns it.
	ErrNotAssigned = errors.New("no pod network assigned")
	// ErrConflict: another node holds the requested subnet; the text names it.
	ErrConflict = errors.New("held by another node")
	// ErrFull: no subnet of the network is free.
	ErrFull = errors.New("no free subnet")
	// ErrUnavailable: the registry does not answer, or refuses for now.
	ErrUnavailable = errors.New("registry unavailable")
	// ErrInvalid: a given or read value is invalid; the text names the field.
	ErrInvalid = errors.New("invalid")
)
