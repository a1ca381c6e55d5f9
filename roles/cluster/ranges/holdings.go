package ranges

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

const (
	// quietTime is the interval at which a node that does not announce its addresses reads whether it is alone.
	quietTime = time.Second
	// announceTime is the time after its ADD in which an interface gets its addresses. One without them is not
	// announced after that: a virtual machine may have taken them over.
	announceTime = 2 * time.Minute
)

// keepRegister stores those reservations of a register that this node holds, or held last.
func (k *Keeper) keepRegister(name string, g *register) {
	delete(k.registers, name)
	for _, r := range g.Reservations {
		if h := r.self(k); h != nil || r.Last == k.Node {
			k.registers[name] = append(k.registers[name], r)
		}
	}
}

// nextRead returns when the registers are to be read again, or nil if that is not known.
func (k *Keeper) nextRead() <-chan time.Time {
	if !k.quiet {
		return nil
	}
	return time.After(quietTime)
}

// holdings is what node.db has about reservations.
type holdings struct {
	held   map[store.ReservationID]*store.RangeReservation
	leases map[leaseKey]*store.Lease
}

type leaseKey struct {
	dir  string
	addr netip.Addr
}

// lease returns a lease of a reservation's addresses, or nil.
func (v *holdings) lease(pool string, addrs []netip.Addr) *store.Lease {
	for _, a := range addrs {
		for _, dir := range []string{store.RangeDir(pool), ""} {
			if lease := v.leases[leaseKey{dir, a}]; lease != nil {
				return lease
			}
		}
	}
	return nil
}

// readHoldings reads node.db. It deletes the reservations whose containers have ended, in the transaction that finds
// no lease, so that no ADD uses them any more.
func (k *Keeper) readHoldings(ctx context.Context) (v *holdings, err error) {
	var ended []store.ReservationID
	read := func(tx *store.Tx) error {
		v, ended = &holdings{leases: map[leaseKey]*store.Lease{}}, nil
		err := eachLease(tx, func(id store.PoolID, l *store.Lease) {
			if recovery.IsPoolUnknown(id) {
				id.DataDir = ""
			}
			v.leases[leaseKey{id.DataDir, l.Address}] = l
		})
		if err == nil {
			v.held, err = tx.RangeReservations()
		}
		if errors.Is(err, store.ErrDamaged) {
			err = nil // the registry has it, too, and updateReservation writes it again
		}
		for id, l := range v.held {
			if v.lease(id.Pool, l.Addresses) == nil && !l.Valid(k.Host.Now(), k.Host.SinceBoot()) {
				ended = append(ended, id)
				delete(v.held, id)
			}
		}
		return err
	}
	if err := k.Host.Store.View(ctx, read); err != nil || len(ended) == 0 {
		return v, err
	}
	return v, k.Host.Store.Update(ctx, func(tx *store.Tx) error {
		err := read(tx)
		for _, id := range ended {
			err = errors.Join(err, tx.DeleteRangeReservation(id))
		}
		return err
	})
}

// updateReservations records in the registry which reservations this node holds, announces addresses that it has
// alone, and frees what has expired. If it is due, it reads all registers that concern this node.
func (k *Keeper) updateReservations(ctx context.Context, due bool) error {
	v, err := k.readHoldings(ctx)
	if err != nil {
		return err
	}
	names := map[string]bool{} // those to read
	for name, all := range k.registers {
		for _, r := range all {
			h := r.self(k)
			held := h != nil && (h.Quiet || v.held[r.ReservationID] == nil)
			names[name] = names[name] || due || held || r.expired(k.Host.Now())
		}
	}
	for id := range v.held {
		name := registerOf(id)
		i := slices.IndexFunc(k.registers[name], func(r *reservation) bool { return r.ReservationID == id && r.self(k) != nil })
		names[name] = names[name] || i < 0
	}
	k.quiet = false
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			faults = append(faults, k.updateRegister(ctx, name, v, due))
		}
	}
	return errors.Join(faults...)
}

// updateRegister changes a register to what node.db says about this node, and does what follows.
func (k *Keeper) updateRegister(ctx context.Context, name string, v *holdings, due bool) error {
	var all []*reservation
	ended := map[*reservation]bool{}
	err := k.changeRegister(ctx, name, func(g *register) (changed bool) {
		for _, l := range v.held {
			changed = name == registerOf(l.ReservationID) && k.recordAgain(g, l, v.lease(l.Pool, l.Addresses)) || changed
		}
		for _, r := range g.Reservations {
			h := r.self(k)
			if h != nil && h.Fence != "" {
				k.log.Warn("another node found no record of this node and wanted to end its hold of a reservation: that is prevented", "reservation", r.Key, "network", r.Network)
				h.Fence, changed = "", true
			}
			if h != nil && v.held[r.ReservationID] == nil && v.lease(r.Pool, r.Addresses) == nil {
				r.end(k, k.isSelf)
				ended[r], changed = true, true
			}
		}
		all = slices.Clone(g.Reservations)
		return changed
	})
	if err != nil {
		k.quiet = true // the next pass repeats it soon
		return err
	}
	gone := map[string]bool{}
	var faults []error
	for _, r := range all {
		faults = append(faults, k.updateReservation(ctx, r, v, due || ended[r], gone))
	}
	return errors.Join(faults...)
}

// recordAgain records a reservation in use that the registry has lost, or that another node has ended because it
// found no record of this one.
func (k *Keeper) recordAgain(g *register, l *store.RangeReservation, lease *store.Lease) (changed bool) {
	r := g.find(l.ReservationID)
	switch {
	case lease == nil:
		return false
	case r == nil:
		g.Reservations = append(g.Reservations, &reservation{
			ReservationID: l.ReservationID, ID: rand.Text(), State: taking, Addresses: l.Addresses, TTL: store.KeepForever, Until: k.Host.Now().UTC().Add(takingTime), Last: k.Node,
		})
	case r.self(k) != nil || r.State != reserved || len(r.Holders) >= maxHolders || !slices.Equal(r.Addresses, l.Addresses):
		return false
	default:
		r.hold(k, l.Since)
	}
	k.log.Warn("the registry has lost a reservation of this node: it is recorded again", "reservation", l.Key, "network", l.Network)
	return true
}

// updateReservation does what follows from a reservation's record.
func (k *Keeper) updateReservation(ctx context.Context, r *reservation, v *holdings, due bool, gone map[string]bool) error {
	h, mine, lease := r.self(k), v.held[r.ReservationID], v.lease(r.Pool, r.Addresses)
	switch {
	case h == nil && mine != nil && lease == nil:
		return nil // an ADD begins
	case h == nil && mine != nil:
		conflict := "it is on " + r.holders()
		if r.State == taking {
			var err error
			if _, conflict, err = k.takeAddresses(ctx, r); err != nil || conflict == "" {
				k.quiet = true // the next pass makes this node a holder
				return err
			}
		}
		return fmt.Errorf("the reservation %q of container %.64q is lost: %s: delete the container", r.Key, lease.Owner.ContainerID, conflict)
	case h == nil && r.Last == k.Node:
		return k.freeUnused(ctx, r, due)
	case h == nil:
		return nil
	case mine == nil: // node.db was rebuilt
		n := &store.RangeReservation{ReservationID: r.ReservationID, Addresses: r.Addresses, Since: h.Since}
		return k.Host.Store.Update(ctx, func(tx *store.Tx) error { return tx.PutRangeReservation(n) })
	case !h.Quiet:
		return nil
	case len(r.Holders) == 1 && lease != nil && k.announce(ctx, r, h, lease):
		_, err := k.update(ctx, r, func(_ *register, now *reservation) bool {
			h := now.self(k)
			if h != nil {
				h.Quiet = false
			}
			return h != nil
		})
		return err
	}
	k.quiet = true
	if !due {
		return nil
	}
	return k.fence(ctx, r, gone)
}

// freeUnused frees a reservation that has expired or whose IPAMClaim was deleted.
func (k *Keeper) freeUnused(ctx context.Context, r *reservation, due bool) error {
	unused := r.expired(k.Host.Now())
	if !unused && due && r.IPAMClaimUID != "" && len(r.Holders) == 0 && k.Claims != nil {
		o, err := k.ipamClaim(ctx, r.Key)
		if err != nil {
			return err
		}
		unused = o == nil || o.UID != r.IPAMClaimUID
	}
	if !unused {
		return nil
	}
	return k.free(ctx, r)
}

// reclaim frees what nodes that do not exist any more have left, because no address of a pool is free.
func (k *Keeper) reclaim(ctx context.Context, pool string) error {
	var all []*reservation
	err := k.Registry.Pages().List(ctx, func(name string, raw []byte, _ string) {
		if !isRegister(name) {
			return
		}
		if g, err := decodeRegister(name, raw); err == nil { // the nodes that need it report a damaged one
			all = append(all, g.Reservations...)
		}
	})
	faults := []error{err}
	gone := map[string]bool{}
	for _, r := range all {
		if r.Pool == pool {
			faults = append(faults, k.fence(ctx, r, gone), k.freeUnused(ctx, r, true))
		}
	}
	return errors.Join(faults...)
}

// announce announces the addresses on the container's interface, because this node holds the reservation alone. It
// returns false if that is to be repeated.
func (k *Keeper) announce(ctx context.Context, r *reservation, h *holder, lease *store.Lease) (done bool) {
	done = k.Host.Now().Sub(h.Since) > announceTime
	ns, err := attachment.OpenRecorded(k.Host, lease.Netns)
	if ns == nil {
		return done && err == nil
	}
	defer ns.Close() //nolint:errcheck // nothing was written to it
	sent, err := packets.Announce(ctx, k.Host.Net, ns, lease.Owner.IfName, r.Addresses)
	if len(sent) > 0 || err != nil {
		k.log.Info("this node has the addresses of a reservation alone", "reservation", r.Key, "network", r.Network, "announced", sent, "error", err)
	}
	return len(sent) == len(r.Addresses) || done && err == nil
}
