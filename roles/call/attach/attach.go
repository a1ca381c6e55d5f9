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
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// SpecBuilder is a role with one configuration. It computes the kernel objects that an
// attachment needs.
type SpecBuilder interface {
	// Shared names the shared objects that the role depends on ("bridge/cni0"). Each is
	// locked for reading while an attachment is made, and for writing while the shared
	// object itself is changed.
	Shared() []string
	// Observe stores the kernel state that Build needs in in.Observed. It changes
	// nothing. The container is nil if it is unknown (plan).
	Observe(ctx context.Context, h *roles.Host, in *Input, container *netops.Namespace) error
	// Build computes the desired state. It is a pure function. Without in.IPAM an
	// interface role returns the interface, up and without addresses. An IPAM plugin that
	// uses the interface (Role.OverLink) is called next, and then Build with the plugin's
	// result.
	Build(in *Input) (*Desired, error)
}

// OrphanFinder is implemented by an interface role if its attachments' interface is not a
// veth pair with the derived name.
type OrphanFinder interface {
	// Orphans lists the objects that an attachment without a record can have left, by
	// names and labels only.
	Orphans(in *Input) netops.Spec
}

// StrayRemover is implemented by an interface role whose attachments have objects that the kernel does not delete together
// with their links.
type StrayRemover interface {
	// RemoveStrays removes such objects of attachments that have neither a record nor a link. ADD and GC call it.
	RemoveStrays(ctx context.Context, h *roles.Host) error
}

// HostNamer is implemented by an interface role if its interfaces on the host have
// another prefix than attachment.HostLinkPrefix.
type HostNamer interface {
	// HostPrefix returns the prefix, of 4 bytes at most.
	HostPrefix() string
}

// SharedRemover is implemented by an interface role that removes the objects its
// attachments share when the last attachment is deleted. Other roles keep them until a GC
// with an empty list.
type SharedRemover interface {
	// RemovableShared returns the shared objects in the order in which they are made;
	// links have names and labels only. It is used to find objects without a record. If
	// it returns none, all shared objects are kept.
	RemovableShared() []netops.Object
}

// AddressBringer is implemented by an interface role whose interface can have addresses
// without those of the IPAM plugin.
type AddressBringer interface {
	// BringsAddresses reports whether the IPAM plugin may return none.
	BringsAddresses() bool
}

func bringsAddresses(r SpecBuilder) bool {
	b, ok := r.(AddressBringer)
	return ok && b.BringsAddresses()
}

// Input is the input of Build.
type Input struct {
	Key store.Key
	// Netns is CNI_NETNS as given: the sandbox of result interfaces.
	Netns string
	Args  roles.Args
	// Pod is the request's IsPod.
	Pod bool
	// HostLink, Label and the MACs are derived from the attachment's key.
	HostLink, Label       string
	HostMAC, ContainerMAC string
	// IPAM is the IPAM plugin's result; nil without an IPAM plugin. On CHECK it is the
	// IPAM plugin's part of prevResult.
	IPAM *roles.Result
	// Quiet means that another node announces the addresses.
	Quiet bool
	// Prev is prevResult on CHECK, else nil.
	Prev *roles.Result
	// Chained is the previous plugin's result on ADD; nil if the role is the first of its
	// list. On CHECK a chained role has Prev here too.
	Chained *roles.Result
	// Recorded is set for a ReferenceCleaner. It is true if the attachment has a record
	// without a part of this role.
	Recorded bool
	// Observed is set by Observe.
	Observed any
	// state identifies the state file that ADD read first.
	state recovery.StateID
	// agentAnswers is true if the node's agent has answered this ADD. It restores rules that another program deletes.
	agentAnswers bool
}

// Desired is the state that a role wants for one attachment.
type Desired struct {
	Spec netops.Spec
	// Result is ADD's result. A chained role leaves it nil to pass prevResult on.
	Result *roles.Result
	// HostLink is the name of the host's end; empty if the attachment has none.
	HostLink string
	// MAC is the MAC of the container's interface. A chained role sets it only if it
	// changes the MAC.
	MAC string
	// Claims are taken before anything is made.
	Claims []store.Resource
	// Note is recorded with an interface role's attachment, for the role's own use.
	Note json.RawMessage
}

// Handler answers the CNI verbs for an interface role.
type Handler struct {
	role SpecBuilder
	// name is the role's name, which marks its part of the record.
	name string
	// ipam is the IPAM plugin's type; empty means layer 2 only.
	ipam string
}

// Builder returns the role, for tests and for roles that wrap the handler.
func (a *Handler) Builder() SpecBuilder { return a.role }

// Add attaches a container. If it fails, it undoes its changes, except those of shared
// objects.
func (a *Handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	in := a.newInput(req)
	defer func() {
		if !in.agentAnswers {
			restoreRules(ctx, h)
		}
	}()
	ns, end, err := begin(ctx, h, req)
	if err != nil {
		return nil, err
	}
	defer end()
	in.Chained = req.PrevResult
	in.state, err = a.clearDead(ctx, h, req, ns)
	if err != nil {
		return nil, err
	}
	add := &addition{work: work{role: a.role, name: a.name, h: h, req: req, in: in, ns: ns, filtered: true}, ipam: a.ipam}
	attach := add.addressFirst
	if a.overLink(h) {
		attach = add.linkFirst
	}
	if err := attach(ctx); err != nil {
		return nil, errors.Join(err, a.removeShared(context.WithoutCancel(ctx), h, req.Network))
	}
	if err := a.removeStrays(ctx, h); err != nil {
		h.Log.Warn("objects of earlier containers stay until the next call", "error", err)
	}
	return add.made.desired.Result, nil
}

// removeStrays calls the role's RemoveStrays, if it has one.
func (a *Handler) removeStrays(ctx context.Context, h *roles.Host) error {
	if s, ok := a.role.(StrayRemover); ok {
		return s.RemoveStrays(ctx, h)
	}
	return nil
}

// begin opens the container's namespace and locks the attachment, until the caller calls
// end. It rebuilds a lost state.
func begin(ctx context.Context, h *roles.Host, req *roles.Request) (ns *netops.Namespace, end func(), err error) {
	if ns, err = openNamespace(h, req); err != nil {
		return nil, nil, err
	}
	lock, err := h.Store.LockAttachment(ctx, req.Key())
	if err == nil {
		err = recovery.Ensure(ctx, h)
	}
	end = func() {
		lock.Unlock()
		_ = ns.Close() // it was only read
	}
	if err != nil {
		end()
	}
	return ns, end, err
}

// openNamespace opens the container's namespace.
func openNamespace(h *roles.Host, req *roles.Request) (*netops.Namespace, error) {
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	return ns, nil
}

// overLink reports whether the IPAM plugin needs the interface to exist.
func (a *Handler) overLink(h *roles.Host) bool {
	return a.ipam != "" && h.Delegate.OverLink(a.ipam)
}

// newInput derives an attachment's names, with the role's own prefix.
func (a *Handler) newInput(req *roles.Request) *Input {
	in := newInput(req)
	if n, ok := a.role.(HostNamer); ok {
		in.HostLink = attachment.HostLinkWithPrefix(n.HostPrefix(), in.Key)
	}
	return in
}

// newInput derives an attachment's names.
func newInput(req *roles.Request) *Input {
	key := req.Key()
	return &Input{
		Key: key, Netns: req.Netns, Args: req.Args, Pod: req.IsPod(),
		HostLink: attachment.HostLink(key), Label: attachment.Label(key),
		HostMAC: attachment.MAC(key, "host"), ContainerMAC: attachment.MAC(key, "container"),
	}
}

// clearDead removes the attachment if an interrupted call or an earlier container of the
// same ID left it. A living attachment is an error. clearDead returns the ID of the state
// file that it read.
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
		dead, err := attachment.Replaced(ctx, h, old, ns)
		if err != nil {
			return state, err
		}
		if !dead {
			return state, fmt.Errorf("%w: interface %q of container %q on network %q, since %s: run DEL first",
				roles.ErrAttached, req.IfName, req.ContainerID, req.Network, p.Time.Format("2006-01-02 15:04:05"))
		}
	}
	return state, attachment.Remove(ctx, h, old, ns)
}

// releaseUnused releases the addresses of an ADD that was killed before it recorded the
// attachment. They are unused: the attachment has no record, this call holds the
// attachment's lock, and the namespace of the leases does not contain the interface.
// Leases of another namespace may be in use, because a third-party plugin that calls our
// IPAM role records no attachment.
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

// lockShared locks every name in order and returns a function that unlocks all of them.
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

// restoreRules restores the nftables rules of all attachments if another program deleted
// them. CHECK only reports that. DEL would open an nftables socket for it, whose end waits
// for the deletions of other processes.
func restoreRules(ctx context.Context, h *roles.Host) {
	if _, err := recovery.RestoreRules(ctx, h, false); err != nil {
		h.Log.Debug("rules of other attachments are not restored", "error", err)
	}
}
