package ranges

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

const (
	// grantTime is the time in which the ADD that asked for a reservation leases its addresses.
	grantTime = time.Minute
	// takingTime is the time after which an unfinished reservation is freed.
	takingTime = time.Hour
	// maxSteps bounds the steps of one request, if other nodes take each address that is chosen.
	maxSteps = 30
	// maxReservationName bounds the names of pool, network and reservation in bytes.
	maxReservationName = 1000
)

// Reserve is an ADD's request for the addresses of a reservation.
type Reserve struct {
	store.ReservationID
	// Ranges are those of the network. Each gives one address.
	Ranges []store.RangeDemand `json:"ranges,omitempty"`
	// TTL is the time in seconds for which the addresses are kept without a container, or store.KeepForever.
	TTL int64 `json:"ttl,omitempty"`
	// Pod is the pod's name.
	Pod string `json:"pod,omitempty"`
	// Free ends the reservation instead.
	Free bool `json:"free,omitempty"`
}

// gives reports whether an address is of the i-th range.
func (d *Reserve) gives(i int, a netip.Addr) bool {
	return slices.ContainsFunc(intervals(&d.Ranges[i]), func(in leasing.Interval) bool { return in.Contains(a) })
}

// intervals returns those of all ranges.
func (d *Reserve) intervals() (all []leasing.Interval) {
	for i := range d.Ranges {
		all = append(all, intervals(&d.Ranges[i])...)
	}
	return all
}

// check returns an error unless there is one address of each range, in their order.
func (d *Reserve) check(addrs []netip.Addr) error {
	for i := range max(len(addrs), len(d.Ranges)) {
		if i >= len(addrs) || i >= len(d.Ranges) || !d.gives(i, addrs[i]) {
			return fmt.Errorf("%v is not one address of each range of the network %q: correct the ranges, or delete the reservation", addrs, d.Network)
		}
	}
	return nil
}

// addresses returns the addresses in status.ips of an IPAMClaim in the order of the ranges.
func (d *Reserve) addresses(o *cluster.IPAMClaim) (addrs []netip.Addr, err error) {
	for i := range d.Ranges {
		for _, text := range o.IPs {
			text, _, _ = strings.Cut(text, "/")
			if a, err := netip.ParseAddr(text); err == nil && d.gives(i, a) && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	if err = d.check(addrs); err == nil && len(addrs) != len(o.IPs) {
		err = errors.New("they are not those of the network's ranges")
	}
	if err != nil {
		return nil, fmt.Errorf("IPAMClaim %s/%s: status.ips %.200q: %w", o.Namespace, o.Name, o.IPs, err)
	}
	return addrs, nil
}

// serve makes this node a holder of a reservation, or frees the reservation.
func (k *Keeper) serve(ctx context.Context, d *Reserve) error {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	if len(d.Pool)+len(d.Network)+len(d.Key) > maxReservationName {
		return fmt.Errorf("the names of pool, network and reservation have more than %d bytes", maxReservationName)
	}
	if !k.listed {
		if err := k.verify(ctx); !k.listed {
			return err
		}
	}
	if err := k.Registry.Join(ctx); err != nil {
		return err
	}
	if err := k.refuseForeign(ctx, d.intervals()); err != nil {
		return err
	}
	var object *cluster.IPAMClaim
	if !d.Free {
		var err error
		if object, err = k.ipamClaim(ctx, d.Key); err != nil {
			return err
		}
		if object == nil && k.Claims != nil && strings.HasPrefix(d.Key, ipamClaimPrefix) {
			return fmt.Errorf("IPAMClaim %s does not exist: create it", strings.TrimPrefix(d.Key, ipamClaimPrefix))
		}
	}
	for range maxSteps {
		done, err := k.step(ctx, d, object)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("other nodes change the reservation %q: %w", d.Key, cluster.ErrRaced)
}

// step does what the reservation's record requires next.
func (k *Keeper) step(ctx context.Context, d *Reserve, object *cluster.IPAMClaim) (done bool, err error) {
	r, err := k.lookUp(ctx, d.ReservationID)
	switch {
	case err != nil:
		return false, err
	case d.Free && r == nil:
		return false, fmt.Errorf("there is no reservation %q of the network %q", d.Key, d.Network)
	case d.Free && len(r.Holders) > 0:
		return false, fmt.Errorf("the reservation %q is in use on %s: delete the pods", d.Key, r.holders())
	case d.Free:
		return true, k.free(ctx, r)
	case r == nil:
		return false, k.begin(ctx, d, object)
	case r.State == freeing || len(r.Holders) == 0 && object != nil && r.IPAMClaimUID != object.UID:
		return false, k.free(ctx, r)
	case r.State == taking:
		return false, k.complete(ctx, d, r, object)
	}
	return k.hold(ctx, d, r, object)
}

// ipamClaim returns the IPAMClaim object of a reservation, or nil if there is none.
func (k *Keeper) ipamClaim(ctx context.Context, key string) (*cluster.IPAMClaim, error) {
	key, is := strings.CutPrefix(key, ipamClaimPrefix)
	namespace, name, _ := strings.Cut(key, "/")
	if k.Claims == nil || !is {
		return nil, nil
	}
	return k.Claims.IPAMClaim(ctx, namespace, name)
}

// lookUp reads a reservation. It returns nil if there is none.
func (k *Keeper) lookUp(ctx context.Context, id store.ReservationID) (r *reservation, err error) {
	err = k.changeRegister(ctx, registerOf(id), func(g *register) bool {
		r = g.find(id)
		return false
	})
	return r, err
}

// update changes a reservation, if it was not deleted since it was read, and reports whether fn has changed it.
func (k *Keeper) update(ctx context.Context, seen *reservation, fn func(g *register, r *reservation) bool) (changed bool, err error) {
	err = k.changeRegister(ctx, registerOf(seen.ReservationID), func(g *register) bool {
		r := g.find(seen.ReservationID)
		changed = r != nil && r.ID == seen.ID && fn(g, r)
		return changed
	})
	return changed && err == nil, err
}

// changeRegister is change for a register.
func (k *Keeper) changeRegister(ctx context.Context, name string, fn func(*register) (changed bool)) error {
	g := &register{}
	_, err := swap(ctx, k.Registry, name, func(raw []byte) (_ []byte, err error) {
		g = &register{}
		if len(raw) > 0 {
			if g, err = decodeRegister(name, raw); err != nil {
				return nil, err
			}
		}
		if !fn(g) {
			return nil, nil
		}
		g.Revision++
		raw, err = json.Marshal(g)
		if len(raw) > cluster.MaxPage {
			err = fmt.Errorf("%s of ranges: more than %d bytes: delete reservations", name, cluster.MaxPage)
		}
		return raw, err
	})
	if err == nil {
		k.keepRegister(name, g)
	}
	return err
}

// begin records the addresses that a new reservation will take.
func (k *Keeper) begin(ctx context.Context, d *Reserve, object *cluster.IPAMClaim) (err error) {
	n := &reservation{ReservationID: d.ReservationID, ID: rand.Text(), State: taking, TTL: d.TTL, Last: k.Node, Until: k.Host.Now().UTC().Add(takingTime)}
	if object != nil {
		n.IPAMClaimUID, n.TTL = object.UID, store.KeepForever // until the object is deleted
		if len(object.IPs) > 0 {
			n.Addresses, err = d.addresses(object)
		}
	}
	for err == nil && len(n.Addresses) < len(d.Ranges) {
		var a netip.Addr
		a, err = k.choose(ctx, d, len(n.Addresses), n.Addresses)
		n.Addresses = append(n.Addresses, a)
	}
	if err != nil {
		return err
	}
	return k.changeRegister(ctx, registerOf(d.ReservationID), func(g *register) bool {
		if g.find(d.ReservationID) != nil {
			return false
		}
		g.Reservations = append(g.Reservations, n)
		return true
	})
}

// complete takes the addresses of a reservation. In place of an address that another node has it chooses another one.
func (k *Keeper) complete(ctx context.Context, d *Reserve, r *reservation, object *cluster.IPAMClaim) error {
	i, conflict, err := k.takeAddresses(ctx, r)
	if err != nil || conflict == "" {
		return err
	}
	var other netip.Addr
	if object != nil && len(object.IPs) > 0 {
		err = fmt.Errorf("status.ips of IPAMClaim %s/%s: %s", object.Namespace, object.Name, conflict)
	} else if err = d.check(r.Addresses); err == nil {
		other, err = k.choose(ctx, d, i, r.Addresses)
	}
	if err != nil {
		return errors.Join(err, k.free(ctx, r))
	}
	_, err = k.update(ctx, r, func(_ *register, now *reservation) bool {
		if now.State != taking || now.Addresses[i] != r.Addresses[i] {
			return false
		}
		now.Addresses[i] = other
		return true
	})
	return err
}

// hold makes this node a holder, or returns false if the reservation has changed. It writes the register in any
// case, so that an older write that ends the hold fails.
func (k *Keeper) hold(ctx context.Context, d *Reserve, seen *reservation, object *cluster.IPAMClaim) (held bool, err error) {
	if err := d.check(seen.Addresses); err != nil {
		return false, err
	}
	if object != nil {
		given := seen.Addresses
		if len(object.IPs) > 0 {
			given, err = d.addresses(object)
		}
		if err == nil && (seen.IPAMClaimUID != object.UID || !slices.Equal(given, seen.Addresses)) {
			err = fmt.Errorf("IPAMClaim %s/%s was replaced or its status.ips changed: %s still has %v: delete the pods there, or restore it", object.Namespace, object.Name, seen.holders(), seen.Addresses)
		}
		if err != nil {
			return false, err
		}
	}
	if len(seen.Holders) >= maxHolders && seen.self(k) == nil {
		if err := k.fence(ctx, seen, map[string]bool{}); err != nil {
			return false, err
		}
	}
	// Another program may have got the range before the pages were written.
	if err := k.refuseForeign(ctx, d.intervals()); err != nil {
		return false, err
	}
	now, sinceBoot := k.Host.Now(), k.Host.SinceBoot()
	var full error
	mine := &store.RangeReservation{ReservationID: d.ReservationID, Addresses: seen.Addresses, Since: now.UTC(), Until: now.UTC().Add(grantTime), UntilBoot: sinceBoot + grantTime}
	held, err = k.update(ctx, seen, func(_ *register, r *reservation) bool {
		h := r.self(k)
		full = nil
		if r.State != reserved {
			return false
		}
		if h == nil && len(r.Holders) >= maxHolders {
			full = fmt.Errorf("the nodes %s have %v of the reservation %q, and two at most may have it: delete one of the pods", r.holders(), r.Addresses, r.Key)
			return false
		}
		if h == nil {
			h = r.hold(k, now)
		}
		h.Fence, mine.Quiet = "", h.Quiet
		if object == nil {
			r.TTL = d.TTL
		}
		return true
	})
	if !held || err != nil {
		return false, errors.Join(full, err)
	}
	if err := k.Host.Store.Update(ctx, func(tx *store.Tx) error { return tx.PutRangeReservation(mine) }); err != nil {
		return false, err
	}
	if object == nil || len(object.IPs) > 0 && object.Pod == d.Pod {
		return true, nil
	}
	object.Pod = d.Pod
	if len(object.IPs) == 0 {
		for i, a := range seen.Addresses {
			object.IPs = append(object.IPs, netip.PrefixFrom(a, d.Ranges[i].Bits).String())
		}
	}
	return true, k.Claims.AllocateIPAMClaim(ctx, object)
}

// fence removes holders whose nodes have no record any more. Before, it marks them and waits for the grace period, in
// which the node, if it lives, removes the mark. gone caches which nodes have no record.
func (k *Keeper) fence(ctx context.Context, seen *reservation, gone map[string]bool) error {
	lost := false
	for _, h := range seen.Holders {
		if _, known := gone[h.Node]; !known && !k.isSelf(h) {
			// A machine with this node's name is an earlier installation of this node, see takeOver.
			is, err := k.Registry.Gone(ctx, h.Node)
			if err != nil {
				return err
			}
			gone[h.Node] = is || h.Node == k.Node
		}
		lost = lost || gone[h.Node] && !k.isSelf(h)
	}
	if !lost {
		return nil
	}
	_, err := k.update(ctx, seen, func(_ *register, r *reservation) (changed bool) {
		var ended *holder
		for _, h := range r.Holders {
			since, known := k.fences[h.Fence]
			switch {
			case k.isSelf(h) || !gone[h.Node]:
			case h.Fence == "":
				h.Fence, changed = rand.Text(), true
			case !known:
				k.fences[h.Fence] = k.clock()
			case k.clock().Sub(since) >= k.Grace:
				ended = h
			}
		}
		if ended == nil {
			return changed
		}
		k.log.Warn("a node without a record no longer holds a reservation", "reservation", r.Key, "network", r.Network, "node", ended.Node)
		r.end(k, func(h *holder) bool { return h == ended })
		return true
	})
	return err
}
