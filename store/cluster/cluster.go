// Package cluster knows who the other nodes are: one small interface over the
// engines that hold it (Kubernetes' Node objects, etcd in flannel's layout, a
// directory of JSON files).
//
// An engine yields snapshots, not events: whoever programs the kernel compares
// what should be with what is, so that nothing is lost when a message is.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
)

// Node is what one node tells the others. The fields are flannel's, so that
// nodes of both programs share a cluster.
type Node struct {
	// Name is the node's name in its registry: the Node object's, the file's,
	// or, in etcd, which has none, the lease's key.
	Name string `json:"name"`
	// PublicIP and PublicIPv6 are where the others send tunnelled packets, and
	// the next hop of host-gw; invalid where the node has no such family.
	PublicIP   netip.Addr `json:"publicIP,omitzero"`
	PublicIPv6 netip.Addr `json:"publicIPv6,omitzero"`
	// PodCIDRs are the node's pod networks, at most one of each family, IPv4 first.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	// BackendType is "vxlan" or "host-gw"; others are kept as they are read.
	BackendType string `json:"backendType"`
	// BackendData and BackendV6Data are the backend's JSON: for vxlan
	// {"VNI":1,"VtepMAC":"…"}, "null" for host-gw.
	BackendData   json.RawMessage `json:"backendData,omitempty"`
	BackendV6Data json.RawMessage `json:"backendV6Data,omitempty"`
	// Wishes are no part of the record, but what people wrote beside it.
	Wishes Wishes `json:"-"`
}

// Wishes are what people ask of a node by annotations of its Node object.
type Wishes struct {
	// NodeIP and NodeIPv6 are addresses of the node to use, as --public-ip and
	// --public-ipv6 name them; the wish goes before the flag.
	NodeIP, NodeIPv6 netip.Addr
	// PublishIP and PublishIPv6 are told to the others instead of the node's own
	// addresses, as behind NAT. Acquire does that by itself, and returns them.
	PublishIP, PublishIPv6 netip.Addr
}

// Wisher is a Registry by which people can ask something of this node.
type Wisher interface {
	// Wishes are this node's; they may be read before Acquire.
	Wishes(ctx context.Context) (Wishes, error)
}

// Snapshot is everything that a registry says at one time. It is not changed
// after it was handed out.
type Snapshot struct {
	// Config is the network's configuration; nil where the registry holds none
	// (Kubernetes), and it is a file of the node's.
	Config *Config
	// Nodes are all nodes that take part, this one included, in order of their names.
	Nodes []Node
	// Faults tell, by name, which entries are left out of Nodes and why. A name
	// that begins with "/" is that of the configuration, whose last good form is in force.
	Faults map[string]error
}

// Update is what Watch reports: a new Snapshot, or that the registry cannot be
// heard at the moment. Then the last snapshot stays in force.
type Update struct {
	Snapshot *Snapshot
	Err      error
}

// Registry is one engine, opened for one node. Its methods may be called at the
// same time: whoever watches acquires and acquires again meanwhile, and Watch
// may begin before the first Acquire.
type Registry interface {
	// Config is the network's configuration; nil where the registry holds none.
	Config(ctx context.Context) (*Config, error)
	// Acquire publishes the node and returns it as it is stored: where PodCIDRs
	// is empty, the registry chooses, or tells what was assigned. It is idempotent:
	// it repairs what is missing or altered, and writes nothing when all is there.
	// ErrNotAssigned means that it can only be waited for: Watch reports a snapshot
	// when something about this node changed, even if the snapshot did not.
	Acquire(ctx context.Context, want Node) (Node, error)
	// Watch calls fn with the state of all nodes, whenever it changed, and keeps
	// what Acquire got alive, until ctx is done. The first snapshot is a complete
	// one. It does not return when the registry is down: it reports that and
	// tries again, ever more rarely, with jitter. A slow fn gets the newest
	// snapshot, not each.
	Watch(ctx context.Context, fn func(Update)) error
	// Ready tells the registry that this node's pod network works (Kubernetes'
	// NetworkUnavailable condition); others do nothing.
	Ready(ctx context.Context) error
	// Release withdraws what Acquire published.
	Release(ctx context.Context) error
	// Close ends every connection.
	Close() error
}

var (
	// ErrNotAssigned: the node has no pod network yet, which another program assigns.
	ErrNotAssigned = errors.New("no pod network assigned")
	// ErrConflict: another node holds what this one asks for; the text names it.
	ErrConflict = errors.New("held by another node")
	// ErrFull: no subnet of the network is free.
	ErrFull = errors.New("no free subnet")
	// ErrUnavailable: the registry does not answer, or refuses to for now.
	ErrUnavailable = errors.New("registry unavailable")
	// ErrInvalid: what was given or read is not what it has to be; the text
	// names the field.
	ErrInvalid = errors.New("invalid")
)
