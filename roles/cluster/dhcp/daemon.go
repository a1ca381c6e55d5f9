// Package dhcp is the daemon behind the IPAM role dhcp. It leases addresses from
// DHCP servers for containers, renews them and releases them. The plugin calls it
// over a unix socket in the protocol of the reference daemon.
package dhcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// daemon maintains the leases that were requested over one socket.
type daemon struct {
	host *roles.Host
	// ctx ends with the daemon.
	ctx       context.Context
	socket    string
	prefix    string
	timing    Timing
	broadcast bool
	// node is the node's part of a pod's identity.
	node string
	// abandoned waits for the leases that end in the background.
	abandoned sync.WaitGroup

	// mu guards the fields below.
	mu     sync.Mutex
	leases map[store.Key]*lease
	// identities counts the leases of an identity. Two sandboxes of one pod may have
	// one each for a time.
	identities map[string]int
	busy       map[store.Key]chan struct{}
	// former are the leases of each identity before this boot.
	former map[string]former
}

// former has an identity's leases of an earlier boot: the addresses by family, and the keys of the
// records.
type former struct {
	addrs map[string]netip.Addr
	keys  []store.Key
}

func newDaemon(ctx context.Context, h *roles.Host, socket string, t Timing) *daemon {
	return &daemon{
		host: h, ctx: ctx, socket: socket, timing: t,
		leases: map[store.Key]*lease{}, identities: map[string]int{}, busy: map[store.Key]chan struct{}{},
		former: map[string]former{},
	}
}

// lock waits until no other call works on an attachment, and excludes further ones.
func (d *daemon) lock(ctx context.Context, key store.Key) (unlock func(), err error) {
	mine := make(chan struct{})
	for {
		d.mu.Lock()
		other, taken := d.busy[key]
		if !taken {
			d.busy[key] = mine
		}
		d.mu.Unlock()
		if !taken {
			return func() {
				d.mu.Lock()
				delete(d.busy, key)
				d.mu.Unlock()
				close(mine)
			}, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (d *daemon) find(key store.Key) *lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leases[key]
}

// addIdentity counts a lease of an identity. It is called before the first message is sent.
func (d *daemon) addIdentity(l *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.identities[l.rec.Identity]++
}

// removeIdentity undoes addIdentity and reports whether it was the last lease of the identity.
func (d *daemon) removeIdentity(l *lease) (last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leases[l.rec.Owner] == l {
		delete(d.leases, l.rec.Owner)
	}
	d.identities[l.rec.Identity]--
	if d.identities[l.rec.Identity] > 0 {
		return false
	}
	delete(d.identities, l.rec.Identity)
	return true
}

func (d *daemon) keep(l *lease, resumed bool) {
	d.mu.Lock()
	d.leases[l.rec.Owner] = l
	d.mu.Unlock()
	l.start(d.ctx, resumed)
}

// formerAddresses returns the addresses that an identity had before this boot, and
// the keys of their records.
func (d *daemon) formerAddresses(identity string) (addrs map[string]netip.Addr, keys []store.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.former[identity]
	for _, l := range d.leases {
		if l.rec.Identity == identity {
			return nil, f.keys // another lease uses them; servers decide
		}
	}
	return f.addrs, f.keys
}

// newLease makes a lease of a record, which has no grants yet for a new attachment.
func (d *daemon) newLease(rec store.DHCPLease) (*lease, error) {
	conf, err := protocol.Decode(rec.Conf)
	if err != nil {
		return nil, err
	}
	args, err := roles.ParseArgs(rec.Args)
	if err != nil {
		return nil, err
	}
	options, err := conf.Provided(args)
	if err != nil {
		return nil, err
	}
	rec.Pod = (&roles.Request{Args: args}).Pod()
	if rec.Identity == "" {
		rec.Identity = identity(conf, rec.Owner, rec.Pod, d.node)
		if own, ok := providedIdentity(options); ok {
			rec.Identity = own
		}
	}
	log := d.host.Log.With("network", rec.Owner.Network, "container", rec.Owner.ContainerID, "ifname", rec.Owner.IfName)
	return &lease{
		d: d, rec: rec, place: place{netns: rec.Netns, index: rec.Link, ifName: rec.Owner.IfName}, log: log,
		profile: &profile{conf: conf, identity: rec.Identity, options: options, log: log},
	}, nil
}

// end stops the renewal of a lease, releases its addresses and deletes its record.
// The caller must hold the lock of its key.
func (d *daemon) end(ctx context.Context, l *lease) error {
	l.stop()
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	if d.removeIdentity(l) {
		l.releaseAll(ctx)
	} else {
		l.log.Info("not released: another container uses the same client identifier")
	}
	return d.forget(ctx, l.rec.Owner)
}

// forget deletes a lease's record, if there is one. If keep.db is damaged the record is
// lost. If keep.db cannot be written the record stays until a daemon finds that its
// container is gone. Neither may prevent the removal of the container.
func (d *daemon) forget(ctx context.Context, key store.Key) error {
	err := d.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.DeleteDHCPLease(key) })
	if errors.Is(err, store.ErrUnwritable) {
		d.host.Log.Warn("the record of a lease stays", "network", key.Network, "container", key.ContainerID, "ifname", key.IfName, "error", err)
		return nil
	}
	if errors.Is(err, store.ErrDamaged) {
		d.host.Log.Warn("the record of a lease is lost", "network", key.Network, "container", key.ContainerID, "ifname", key.IfName, "error", err)
		return nil
	}
	return err
}

// abandon ends the lease of a container that no longer exists. It does so in the background, because
// the caller is the goroutine that renews the lease.
func (d *daemon) abandon(l *lease) {
	d.abandoned.Go(func() {
		unlock, err := d.lock(d.ctx, l.rec.Owner)
		if err != nil {
			return
		}
		defer unlock()
		if d.find(l.rec.Owner) != l {
			return
		}
		if err := d.end(d.ctx, l); err != nil {
			l.log.Warn("the record of the lease stays", "error", err)
		}
	})
}

// load resumes the recorded leases. For a lease of an earlier boot, the same address is requested
// when a container with the same identity appears.
func (d *daemon) load(ctx context.Context) error {
	recs, err := store.ReadKeep(ctx, d.host.Store, func(tx *store.KeepTx) ([]store.DHCPLease, error) { return tx.DHCPLeases("") })
	if errors.Is(err, store.ErrDamaged) && len(recs) > 0 {
		d.host.Log.Warn("some leases cannot be read", "error", err)
		err = nil
	}
	if err != nil {
		return err
	}
	var stale []store.Key
	for _, rec := range recs {
		if rec.Socket != d.socket {
			continue // of another daemon
		}
		if rec.BootID != d.host.Store.BootID() {
			if !d.remember(rec) {
				stale = append(stale, rec.Owner)
			}
			continue
		}
		l, err := d.newLease(rec)
		if err != nil {
			d.host.Log.Warn("a recorded lease cannot be resumed", "network", rec.Owner.Network, "container", rec.Owner.ContainerID, "error", err)
			continue
		}
		d.addIdentity(l)
		d.keep(l, true)
	}
	if len(stale) == 0 {
		return nil
	}
	err = d.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		var errs []error
		for _, key := range stale {
			errs = append(errs, tx.DeleteDHCPLease(key))
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, store.ErrUnwritable) {
		d.host.Log.Warn("the records of expired leases stay", "error", err)
		return nil
	}
	return err
}

// remember stores an identity's lease of an earlier boot, and reports whether one of its addresses has
// not expired.
func (d *daemon) remember(rec store.DHCPLease) bool {
	addrs := map[string]netip.Addr{}
	for _, g := range rec.Grants {
		if g.Expire.IsZero() || time.Now().Before(g.Expire) {
			addrs[g.Family] = g.Address.Addr()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(addrs) == 0 {
		return false
	}
	d.former[rec.Identity] = former{addrs, append(d.former[rec.Identity].keys, rec.Owner)}
	return true
}

// stop ends the renewal of all leases. Their records stay.
func (d *daemon) stop() {
	d.mu.Lock()
	all := make([]*lease, 0, len(d.leases))
	for _, l := range d.leases {
		all = append(all, l)
	}
	d.mu.Unlock()
	for _, l := range all {
		l.stop()
	}
	d.abandoned.Wait()
}

// collect ends the leases of a network whose attachments are not valid.
func (d *daemon) collect(ctx context.Context, network string, valid []roles.AttachmentID) error {
	d.mu.Lock()
	var keys []store.Key
	for key := range d.leases {
		if key.Network == network && !slices.Contains(valid, roles.AttachmentID{ContainerID: key.ContainerID, IfName: key.IfName}) {
			keys = append(keys, key)
		}
	}
	d.mu.Unlock()
	errs := make([]error, len(keys))
	var wg sync.WaitGroup
	for i, key := range keys {
		wg.Go(func() { errs[i] = d.release(ctx, key) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// release ends an attachment's lease, if there is one.
func (d *daemon) release(ctx context.Context, key store.Key) error {
	unlock, err := d.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	ctx = context.WithoutCancel(ctx)
	if l := d.find(key); l != nil {
		return d.end(ctx, l)
	}
	return d.deleteRecord(ctx, key)
}

// deleteRecord deletes a record that an earlier call could not delete.
func (d *daemon) deleteRecord(ctx context.Context, key store.Key) error {
	err := d.host.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		rec, err := tx.DHCPLease(key)
		if err == nil && (rec.Socket != d.socket || rec.BootID != d.host.Store.BootID()) {
			err = store.ErrNotFound // of another daemon, or of a container that may come back
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	return d.forget(ctx, key) // also if it cannot be read: only this record may be damaged
}

// decodeResult returns a grant's part of the CNI result.
func decodeResult(g *store.DHCPGrant) (*roles.Result, error) {
	var r roles.Result
	if err := json.Unmarshal(g.Result, &r); err != nil {
		return nil, fmt.Errorf("lease of %s on record: %w: %w", g.Address, roles.ErrDecode, err)
	}
	return &r, nil
}
