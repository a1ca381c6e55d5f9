package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/store"
)

// ReleaseAddress deletes an address's lease and reservation. Without force, it is an
// error if the container is not certainly dead. With force, a living container continues
// to use the address.
func ReleaseAddress(ctx context.Context, h *roles.Host, network string, a netip.Addr, force bool) (string, error) {
	v, err := takeInventory(ctx, h, network)
	if err != nil {
		return "", err
	}
	id, err := v.find(a)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(v.leases[id], func(l store.Lease) bool { return l.Address == a })
	if at >= 0 && !force {
		l := v.leases[id][at]
		if removed, err := attachment.ReapOne(ctx, h, l.Owner); err != nil || !removed {
			return "", errors.Join(err, fmt.Errorf("%s is in use by %s since %s: stop it, or use --force; then two containers may use the address",
				a, holderOf(l), l.Time.UTC().Format(time.RFC3339)))
		}
	}
	release := func() error {
		if at < 0 {
			return nil
		}
		return h.Store.UpdatePool(ctx, id, func(_ *store.Tx, pool *store.Pool) error {
			return releaseUnchanged(pool, v.leases[id][at:at+1])
		})
	}
	if len(v.reservations[id]) > 0 {
		err = updateSticky(ctx, h, id, func(kept *store.StickyPool) error {
			return errors.Join(unreserve(kept, a), release())
		})
	} else {
		err = release()
	}
	return fmt.Sprintf("released %s of network %q", a, id.Network), err
}

// unreserve deletes an address's reservation.
func unreserve(kept *store.StickyPool, a netip.Addr) error {
	identity, ok, err := kept.At(a)
	if err != nil || !ok {
		return err
	}
	return kept.Delete(identity)
}

// holderOf describes the owner of a lease.
func holderOf(l store.Lease) string {
	s := fmt.Sprintf("container %.64q interface %.16q", l.Owner.ContainerID, l.Owner.IfName)
	if l.Pod != "" {
		s = fmt.Sprintf("pod %.120q, ", l.Pod) + s
	}
	return s
}

// Pin is a reservation by an operator.
type Pin struct {
	Pool      store.PoolID
	Addresses []netip.Addr
	// Identity is the identity that may use the addresses; empty if no pod may use them.
	Identity string
	// Until is the end of the reservation; zero for never.
	Until time.Time
	// Force also takes addresses that are kept for other identities.
	Force bool
}

// ReserveAddresses keeps addresses for an identity, or unused, until a time or for ever.
// An address in use can be reserved only for the identity that uses it.
func ReserveAddresses(ctx context.Context, h *roles.Host, pin Pin) (string, error) {
	r := store.Reservation{Identity: pin.Identity, Addresses: pin.Addresses, Created: h.Now(), Pinned: true, Until: pin.Until}
	if r.Identity == "" {
		r.Identity = fmt.Sprintf("reserved:%s", pin.Addresses[0])
	}
	err := updateSticky(ctx, h, pin.Pool, func(kept *store.StickyPool) error {
		old, err := kept.Reservation(r.Identity)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if old != nil {
			r.Holder, r.Pod, r.BootID, r.TTL, r.Cooldown = old.Holder, old.Pod, old.BootID, old.TTL, old.Cooldown
			r.Created, r.Used, r.Released = old.Created, old.Used, old.Released
		}
		return h.Store.ViewPool(ctx, pin.Pool, func(_ *store.Tx, pool *store.Pool) error {
			if err := pinnable(pool, kept, old, &r, pin.Force); err != nil {
				return err
			}
			return kept.Put(&r)
		})
	})
	identity := "no pod"
	if pin.Identity != "" {
		identity = fmt.Sprintf("%q", pin.Identity)
	}
	return fmt.Sprintf("reserved %s of network %q for %s %s", strings.Join(addrTexts(pin.Addresses), " and "), pin.Pool.Network, identity, until(&store.Reservation{Pinned: true, Until: pin.Until})), err
}

// pinnable returns an error if the addresses of a reservation cannot be reserved.
func pinnable(pool *store.Pool, kept *store.StickyPool, old, r *store.Reservation, force bool) error {
	if old != nil {
		leased, err := isLeased(pool, old)
		if err != nil {
			return err
		}
		if leased && !slices.Equal(slices.Sorted(slices.Values(addrTexts(old.Addresses))), slices.Sorted(slices.Values(addrTexts(r.Addresses)))) {
			return fmt.Errorf("%q has %s now, by container %.64q: reserve that, or stop it first", old.Identity, addrTexts(old.Addresses), old.Holder.ContainerID)
		}
	}
	for _, a := range r.Addresses {
		l, err := pool.Lease(a)
		if err == nil && l.Owner != r.Holder {
			return fmt.Errorf("%s: %w: in use by %s", a, store.ErrTaken, holderOf(*l))
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		other, err := kept.ReservationAt(a)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if other.Identity != r.Identity && other.Reserves(r.Created) && !force {
			return fmt.Errorf("%s: %w: kept for %q %s: use --force to take it", a, store.ErrTaken, other.Identity, until(other))
		}
	}
	return nil
}

// Collected is the output of `cnibox ipam gc`.
type Collected struct {
	// Freed counts the addresses of dead containers.
	Freed int `json:"freed"`
	// Forgotten counts the reservations that had expired.
	Forgotten int `json:"forgotten"`
}

// String returns one line for people.
func (c Collected) String() string {
	return fmt.Sprintf("freed %d addresses of containers that are gone, forgot %d reservations that had expired", c.Freed, c.Forgotten)
}

// Collect removes attachments of certainly dead containers, and expired reservations. It
// does not touch addresses of living containers.
func Collect(ctx context.Context, h *roles.Host) (out Collected, err error) {
	out.Freed, err = attachment.Reap(ctx, h, "")
	if err != nil {
		return out, err
	}
	ids, err := store.ReadKeep(ctx, h.Store, func(keep *store.KeepTx) ([]store.PoolID, error) { return keep.StickyPools("") })
	for _, id := range ids {
		err = errors.Join(err, releaseAbandoned(ctx, h, id), updateSticky(ctx, h, id, func(kept *store.StickyPool) error {
			n, err := kept.Forget(h.Now(), -1)
			out.Forgotten += n
			return err
		}))
	}
	return out, err
}

// pinOf parses the arguments of `cnibox ipam reserve`.
func pinOf(h *roles.Host, flags map[string]string, args []string) (Pin, error) {
	p := Pin{Force: flags["force"] != ""}
	var err error
	p.Addresses, err = parseAddresses(args)
	if err != nil {
		return p, err
	}
	if who := flags["for"]; who != "" {
		p.Identity, err = sticky.ParseIdentity(who)
		if err != nil {
			return p, roles.Usagef("--for: %w", err)
		}
	}
	p.Until, err = sticky.ParseTime(cmp.Or(flags["until"], "never"), h.Now())
	if err != nil {
		return p, roles.Usagef("--until: %w", err)
	}
	return p, nil
}

// parseAddresses parses one address or more.
func parseAddresses(args []string) ([]netip.Addr, error) {
	if len(args) == 0 {
		return nil, roles.Usagef("want ADDRESS")
	}
	var out []netip.Addr
	for _, t := range args {
		a, err := roles.ParseAddr(t)
		if err != nil {
			return nil, roles.Usagef("%w", err)
		}
		if slices.Contains(out, a) {
			return nil, roles.Usagef("%s is given twice", a)
		}
		out = append(out, a)
	}
	return out, nil
}

// addrTexts returns addresses as texts.
func addrTexts(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}
