// Package store holds the state of a node: the attachments, their addresses, and
// what DEL has to undo for them. Only store and its internal packages import bbolt.
//
// One typed API covers two files: node.db, one for each boot, for state that ends with the boot, and
// keep.db for state that survives a reboot.
package store

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// Buckets and the texts of their keys. The pools' buckets are in internal/pool.
const (
	bucketAttachments  = "attachments"  // network, container ID, interface
	bucketNetworks     = "networks"     // name
	bucketShared       = "settled"      // network, role; see Tx.ConfirmShared
	bucketClaims       = "claims"       // kind, name
	bucketClaimOwners  = "claimOwners"  // owner's network, container ID, interface; kind, name
	bucketDerived      = "derived"      // a bucket for each name given to Tx.Derive
	bucketDelegated    = "delegated"    // network, container ID, interface
	bucketNetworksOf   = "networksOf"   // network of a meta role, network
	bucketRanges       = "ranges"       // "grants", or network and number of the range set
	bucketReservations = "reservations" // network, key, pool
	bucketCloud        = "cloud"        // name of the source; in both files

	// In keep.db.
	bucketMarks       = "marks"       // kind, name
	bucketDelegations = "delegations" // network, container ID, interface
	bucketDHCPLeases  = "dhcpLeases"  // network, container ID, interface
)

// Key identifies an attachment: one interface of one container on one network.
type Key = kv.Key

// State is the state of a role's part in an attachment.
type State string

const (
	// Pending means that changes are planned, and that some of them may have been made.
	Pending State = "pending"
	// Done means that all changes were made.
	Done State = "done"
	// Removing means that DEL has begun.
	Removing State = "removing"
)

// Attachment is the record of one attachment. It is written before the first kernel change and after
// the last.
type Attachment struct {
	Key
	// Pod is "namespace/name" if the runtime passed it.
	Pod   string `json:"pod,omitempty"`
	Netns Netns  `json:"netns"`
	// HostLink is the interface on the host, or empty.
	HostLink  string         `json:"hostLink,omitempty"`
	MAC       string         `json:"mac,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Routes    []string       `json:"routes,omitempty"`
	// Imported means that another program attached the container, and that the record was made
	// of that program's state. CHECK compares the recorded objects.
	Imported bool `json:"imported,omitempty"`
	// Note is private data of the role that made the attachment.
	Note json.RawMessage `json:"note,omitempty"`
	// Parts has an entry for each role of the attachment, in the order of ADD.
	Parts   []Part    `json:"parts"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	// Program is the version of the binary that wrote the record.
	Program string `json:"program,omitempty"`
}

// Part is one role's part of an attachment.
type Part struct {
	Role  string `json:"role"`
	State State  `json:"state"`
	// Changes are netops changes with their inverses, in the order in which they are
	// made.
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

// Network is the record of the objects that the attachments of one network share on this node.
type Network struct {
	Name string `json:"name"`
	Role string `json:"role"`
	// Shared are the shared netops objects of the network, as changes whose inverses
	// remove them. GC with an empty list runs the inverses.
	Shared  json.RawMessage `json:"shared,omitempty"`
	Updated time.Time       `json:"updated"`
}

// Claim is a node-wide resource of one attachment: a host port, a device, a routing table.
type Claim struct {
	Kind  string    `json:"kind"`
	Name  string    `json:"name"`
	Owner Key       `json:"owner"`
	Time  time.Time `json:"time"`
}

// Info describes a state file's format and origin.
type Info = boltfile.Info
