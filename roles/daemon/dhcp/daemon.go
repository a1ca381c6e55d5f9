// Package dhcp is the daemon behind the IPAM role dhcp: it gets addresses from
// DHCP servers for containers, keeps them and gives them back. The plugin asks
// it over a unix socket, in the protocol of the reference's.
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
	"github.com/cnibox/cnibox/roles/daemon/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// daemon keeps the leases of one socket.
type daemon struct {
	host *roles.Host
	// ctx ends with the daemon.
	ctx       context.Context
	socket    string
	prefix    string
	timing    timing
	broadcast bool
	// node tells this node's pods from those of others.
	node string
	// abandoned counts the leases that are being given up.
	abandoned sync.WaitGroup

	// mu guards what follows.
	mu     sync.Mutex
	leases map[store.Key]*lease
	// identities counts who goes by an identity: two sandboxes of one pod, for a time.
	identities map[string]int
	busy       map[store.Key]chan struct{}
	// former are the leases that identities had before this boot.
	former map[string]former
}

// former is what an identity had before this boot: addresses by family, and
// under which keys they are on record.
type former struct {
	addrs map[string]netip.Addr
	keys  []store.Key
}

func newDaemon(ctx context.Context, h *roles.Host, socket string, t timing) *daemon {
	return &daemon{
		host: h, ctx: ctx, socket: socket, timing: t,
		leases: map[store.Key]*lease{}, identities: map[string]int{}, busy: map[store.Key]chan struct{}{},
		former: map[string]former{},
	}
}

// lock excludes other calls for an attachment.
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

// enlist counts an identity in, before anything is said under it.
func (d *daemon) enlist(l *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.identities[l.rec.Identity]++
}

// delist counts it out again and tells whether nobody else goes by it.
func (d *daemon) delist(l *lease) (last bool) {
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

// wanted are the addresses that an identity had when it was seen last, and
// the records that tell of them.
func (d *daemon) wanted(identity string) (addrs map[string]netip.Addr, keys []store.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.former[identity]
	for _, l := range d.leases {
		if l.rec.Identity == identity {
			return nil, f.keys // they are in use; servers decide
		}
	}
	return f.addrs, f.keys
}

// newLease describes a lease that is to be had, or is on record.
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
	at := place{netns: rec.Netns, index: rec.Link, ifName: rec.Owner.IfName}
	for _, g := range rec.Grants {
		at.macs = append(at.macs, g.MAC)
	}
	log := d.host.Log.With("network", rec.Owner.Network, "container", rec.Owner.ContainerID, "ifname", rec.Owner.IfName)
	return &lease{
		d: d, rec: rec, place: at, log: log,
		who: &who{conf: conf, identity: rec.Identity, options: options, log: log},
	}, nil
}

// end stops keeping a lease, gives its addresses back and forgets it. The
// caller has locked its key.
func (d *daemon) end(ctx context.Context, l *lease) error {
	l.stop()
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	if d.delist(l) {
		l.giveBack(ctx)
	} else {
		l.log.Info("not released: another container goes by the same client identifier")
	}
	return d.forget(ctx, l.rec.Owner)
}

// forget deletes a lease's record, if there is one. A damaged keep.db loses it, and one
// that cannot be written keeps it, until a daemon finds its container gone: neither must
// keep the container from going away.
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

// abandon ends a lease whose container is gone, in the background: a keeper of
// it asks.
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
			l.log.Warn("the lease is still on record", "error", err)
		}
	})
}

// load takes up the leases on record. Those of an earlier boot have no
// container any more; their addresses are asked for when it comes back.
func (d *daemon) load(ctx context.Context) error {
	var recs []store.DHCPLease
	err := d.host.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		recs, err = tx.DHCPLeases("")
		return err
	})
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
			continue // another daemon's
		}
		if rec.BootID != d.host.Store.BootID() {
			if !d.remember(rec) {
				stale = append(stale, rec.Owner)
			}
			continue
		}
		l, err := d.newLease(rec)
		if err != nil {
			d.host.Log.Warn("a lease on record cannot be kept", "network", rec.Owner.Network, "container", rec.Owner.ContainerID, "error", err)
			continue
		}
		d.enlist(l)
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
		d.host.Log.Warn("leases that have expired stay on record", "error", err)
		return nil
	}
	return err
}

// remember notes what an identity had before this boot; false if all of it expired.
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

// stop ends the keeping of all leases, which stay.
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

// release ends an attachment's lease; none is fine.
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
	return d.strike(ctx, key)
}

// strike deletes a record that an earlier call could not.
func (d *daemon) strike(ctx context.Context, key store.Key) error {
	err := d.host.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		rec, err := tx.DHCPLease(key)
		if err == nil && (rec.Socket != d.socket || rec.BootID != d.host.Store.BootID()) {
			err = store.ErrNotFound // another daemon's, or of a container that may come back
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	return d.forget(ctx, key) // also where it cannot be read: perhaps it is this record only
}

// decodeResult is a grant's part of the CNI result.
func decodeResult(g *store.DHCPGrant) (*roles.Result, error) {
	var r roles.Result
	if err := json.Unmarshal(g.Result, &r); err != nil {
		return nil, fmt.Errorf("lease of %s on record: %w: %w", g.Address, roles.ErrDecode, err)
	}
	return &r, nil
}
