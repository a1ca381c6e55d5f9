// Package store is a node's state: who is attached, with which addresses, and
// what must be undone for it. It is the only importer of bbolt.
//
// Two files stand behind one typed API: node.db, one per boot, for what dies
// with the boot, and keep.db for what outlives it.
package store

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Key names an attachment: one interface of one container on one network.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// State of a role's part in an attachment.
type State string

const (
	// Pending: changes are planned and may have been made in part.
	Pending State = "pending"
	// Done: all changes were made.
	Done State = "done"
	// Removing: DEL has begun.
	Removing State = "removing"
)

// Attachment is what is known of one attachment. It is written before the
// first kernel change and after the last.
type Attachment struct {
	Key
	// Pod is "namespace/name" where a runtime told it.
	Pod   string `json:"pod,omitempty"`
	Netns Netns  `json:"netns"`
	// HostLink is the host side's interface, empty where there is none.
	HostLink  string         `json:"hostLink,omitempty"`
	MAC       string         `json:"mac,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Routes    []string       `json:"routes,omitempty"`
	// Note is what the role that made it keeps for itself.
	Note json.RawMessage `json:"note,omitempty"`
	// Parts has one entry for each role that took part, in order of ADD.
	Parts   []Part    `json:"parts"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	// Program is the version of the binary that wrote the record.
	Program string `json:"program,omitempty"`
}

// Netns tells which namespace a path meant when the record was written.
type Netns struct {
	Path string `json:"path,omitempty"`
	// Dev and Inode are the namespace's; 0 when it could not be read.
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
	// Mount is the inode of the recorder's mount namespace: only from within
	// it a missing path means a missing namespace.
	Mount uint64 `json:"mount,omitempty"`
}

// Part is what one role did for an attachment.
type Part struct {
	Role  string `json:"role"`
	State State  `json:"state"`
	// Changes are netops changes with their inverses, in order of making.
	Changes json.RawMessage `json:"changes,omitempty"`
	// Claims are the kinds of claims that the part took.
	Claims []string  `json:"claims,omitempty"`
	Time   time.Time `json:"time"`
}

// Part returns the part of a role, or nil.
func (a *Attachment) Part(role string) *Part {
	for i := range a.Parts {
		if a.Parts[i].Role == role {
			return &a.Parts[i]
		}
	}
	return nil
}

// Network is what attachments of one network share on this node.
type Network struct {
	Name string `json:"name"`
	Role string `json:"role"`
	// Shared are the shared netops objects that the network stands on, as
	// changes whose inverses remove them; GC with an empty list runs them.
	Shared  json.RawMessage `json:"shared,omitempty"`
	Updated time.Time       `json:"updated"`
}

// PoolID names an address pool. Pools of different data directories are apart,
// even with one network name, as host-local's are.
type PoolID struct {
	DataDir string `json:"dataDir"`
	Network string `json:"network"`
}

// Lease is one address in use.
type Lease struct {
	Address netip.Addr `json:"address"`
	// Owner's Network is the pool's.
	Owner Key `json:"owner"`
	// Set is the index of the range set that the address came from.
	Set   int       `json:"set"`
	Netns Netns     `json:"netns,omitzero"`
	Pod   string    `json:"pod,omitempty"`
	Time  time.Time `json:"time"`
	// Imported marks a lease taken over from another program's files; its
	// netns is not known and it is not reaped by its netns.
	Imported bool `json:"imported,omitempty"`
	// Sticky is the identity that keep.db has a reservation of the address for;
	// empty where there is none.
	Sticky string `json:"sticky,omitempty"`
	// Source and NIC tell where an address of the cloud is from: the name of the
	// CloudSource and the MAC of the CloudNIC. They are empty for other leases.
	Source string `json:"source,omitempty"`
	NIC    string `json:"nic,omitempty"`
}

// Claim is a node-wide thing that one attachment holds: a host port, a device,
// a routing table.
type Claim struct {
	Kind  string    `json:"kind"`
	Name  string    `json:"name"`
	Owner Key       `json:"owner"`
	Time  time.Time `json:"time"`
}
