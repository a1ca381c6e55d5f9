// Package attach implements ADD, DEL, CHECK, GC and STATUS once for all interface and
// chained roles. A role is a [SpecBuilder], which computes the desired state; this
// package applies it, records it and undoes it.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// SpecBuilder is a role with one configuration: it computes what an attachment needs.
type SpecBuilder interface {
	// Shared names the shared objects that the role depends on ("bridge/cni0").
	// They are locked for reading while an attachment is made, and for writing
	// while they are changed themselves.
	Shared() []string
	// Observe reads what Build needs to know of the kernel into in.Observed. It
	// changes nothing. The container is nil when it is not known (plan).
	Observe(ctx context.Context, h *roles.Host, in *Input, container *netops.Namespace) error
	// Build computes the desired state. It is a pure function. Without in.IPAM an
	// interface role returns the interface on layer 2, up: an IPAM plugin that uses
	// it is called then (Role.OverLink), and Build is called again with its answer.
	Build(in *Input) (*Desired, error)
}

// OrphanFinder is implemented by an interface role whose attachments have another
// interface than a veth pair with the derived name.
type OrphanFinder interface {
	// Orphans lists what can be left of an attachment without a record, by names and labels only.
	Orphans(in *Input) netops.Spec
}

// HostNamer is implemented by an interface role whose interfaces on the host have
// another prefix than record.HostLinkPrefix.
type HostNamer interface {
	// HostPrefix is the prefix, of 4 bytes at most.
	HostPrefix() string
}

// SharedRemover is implemented by an interface role that removes what its attachments
// share when the last one is deleted, and not only at a GC with an empty list.
type SharedRemover interface {
	// RemovableShared are the shared objects in the order of making, links by names and
	// labels only, to look for what no record names. Empty means that everything stays.
	RemovableShared() []netops.Object
}

// Input is everything that Build computes from.
type Input struct {
	Key store.Key
	// Netns is CNI_NETNS as given: the sandbox of result interfaces.
	Netns string
	Args  roles.Args
	// HostLink, Label and the MACs are the derived names of the attachment.
	HostLink, Label       string
	HostMAC, ContainerMAC string
	// IPAM is the IPAM plugin's answer; nil for layer 2. On CHECK it is made
	// from prevResult.
	IPAM *roles.Result
	// Prev is prevResult on CHECK, else nil.
	Prev *roles.Result
	// Chained is the earlier plugin's result on ADD; nil when the role is the
	// first of its list. A chained role has it on CHECK too, where it is Prev.
	Chained *roles.Result
	// Recorded is true for a LegacyCleaner if the attachment has a record, and only this
	// role's part of it is missing.
	Recorded bool
	// Observed is what Observe read.
	Observed any
	// state is the state file that ADD began with.
	state recovery.StateID
}

// Desired is the state that a role wants for one attachment.
type Desired struct {
	Spec netops.Spec
	// Result is ADD's answer; nil from a chained role passes prevResult on.
	Result *roles.Result
	// HostLink is the host's end, empty if there is none.
	HostLink string
	// MAC is the container interface's; a chained role sets it if it changes it.
	MAC string
	// Claims are taken before anything is made.
	Claims []Claim
	// Note is recorded with an interface role's attachment, for the role's own use.
	Note json.RawMessage
}

// Handler answers the CNI verbs for an interface role.
type Handler struct {
	role SpecBuilder
	// name is the role's, under which its part is recorded.
	name string
	// ipam is the IPAM plugin's type; empty means layer 2 only.
	ipam string
}

// Builder is the role's own part, for tests and for roles that wrap the handler.
func (a *Handler) Builder() SpecBuilder { return a.role }

// Add attaches a container. On failure the kernel and the store are as before,
// but for shared objects.
func (a *Handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	defer ns.Close()
	lock, err := h.Store.LockAttachment(ctx, req.Key())
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := recovery.Ensure(ctx, h); err != nil {
		return nil, err
	}
	in := a.newInput(req)
	in.Chained = req.PrevResult
	in.state, err = a.clearDead(ctx, h, req, ns)
	if err != nil {
		return nil, err
	}
	add := &addition{work: work{role: a.role, name: a.name, h: h, req: req, in: in, ns: ns}, ipam: a.ipam}
	attach := add.addressFirst
	if a.overLink(h) {
		attach = add.linkFirst
	}
	if err := attach(ctx); err != nil {
		return nil, errors.Join(err, a.removeShared(context.WithoutCancel(ctx), h, req.Network))
	}
	return add.made.desired.Result, nil
}

// overLink reports whether the IPAM plugin needs the interface to exist.
func (a *Handler) overLink(h *roles.Host) bool {
	return a.ipam != "" && h.Delegate.OverLink(a.ipam)
}

// newInput derives an attachment's names, with the role's prefix.
func (a *Handler) newInput(req *roles.Request) *Input {
	in := newInput(req)
	if n, ok := a.role.(HostNamer); ok {
		in.HostLink = record.HostLinkWithPrefix(n.HostPrefix(), in.Key)
	}
	return in
}

// newInput derives an attachment's names.
func newInput(req *roles.Request) *Input {
	key := req.Key()
	return &Input{
		Key: key, Netns: req.Netns, Args: req.Args,
		HostLink: record.HostLink(key), Label: record.Label(key),
		HostMAC: record.MAC(key, "host"), ContainerMAC: record.MAC(key, "container"),
	}
}

// clearDead removes what an interrupted call, or an earlier container of the same ID,
// left of the attachment. A living attachment is an error. It returns the ID of the
// state file that it read.
func (a *Handler) clearDead(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) (recovery.StateID, error) {
	found, state, err := recovery.Find(ctx, h, req.Key())
	if err != nil {
		return state, err
	}
	old := found.Attachment
	if old == nil {
		return state, releaseUnused(ctx, h, req, ns, found.Leases)
	}
	p := old.Part(a.name)
	if p == nil {
		p = recovery.RebuiltPart(old)
	}
	if p != nil && p.State == store.Done {
		dead, err := record.Replaced(ctx, h, old, ns)
		if err != nil {
			return state, err
		}
		if !dead {
			return state, fmt.Errorf("%w: interface %q of container %q on network %q, since %s: run DEL first",
				roles.ErrAttached, req.IfName, req.ContainerID, req.Network, p.Time.Format("2006-01-02 15:04:05"))
		}
	}
	return state, record.Remove(ctx, h, old, ns)
}

// releaseUnused releases the addresses of an ADD that was killed before it recorded
// the attachment: there is no record, this call holds the attachment's lock, and the
// namespace that they were reserved for has no such interface. Other leases may be in
// use: a third-party plugin that calls our IPAM role records no attachment.
func releaseUnused(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace, leases []store.Lease) error {
	dev, inode := ns.ID()
	used := func(l store.Lease) bool { return l.Imported || l.Netns.Dev != dev || l.Netns.Inode != inode }
	if len(leases) == 0 || req.PrevResult != nil || slices.ContainsFunc(leases, used) {
		return nil
	}
	_, err := h.Net.Link(ctx, ns, req.IfName)
	if !errors.Is(err, netops.ErrNotExist) {
		return err
	}
	h.Log.Info("releasing addresses of an ADD that was killed", "network", req.Network, "container", req.ContainerID, "ifname", req.IfName)
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.DeleteLeases(req.Key())
		return err
	})
}

// lockShared locks every name, in order, and returns a function that unlocks them all.
func lockShared(ctx context.Context, h *roles.Host, names []string, exclusive bool) (func(), error) {
	var locks []*store.Lock
	unlock := func() {
		for _, l := range locks {
			l.Unlock()
		}
	}
	for _, n := range names {
		l, err := h.Store.LockShared(ctx, n, exclusive)
		if err != nil {
			unlock()
			return nil, err
		}
		locks = append(locks, l)
	}
	return unlock, nil
}
