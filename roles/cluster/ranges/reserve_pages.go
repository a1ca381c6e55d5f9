package ranges

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store/cluster"
)

// choose finds a free address of a range: the last one of a page that the node would take a block of, so that blocks
// and reservations stay apart, or of any page.
func (k *Keeper) choose(ctx context.Context, d *Reserve, i int, except []netip.Addr) (a netip.Addr, err error) {
	var of, cuts []leasing.Interval
	for _, a := range except {
		cuts = append(cuts, leasing.Single(a))
	}
	for _, in := range intervals(&d.Ranges[i]) {
		of = append(of, leasing.Subtract(in, cuts)...)
	}
	all := pagesOf(of)
	for _, first := range k.likely(d.Pool, all) {
		a, err = k.lastFree(ctx, d.Pool, first, of)
		if a.IsValid() || err != nil && !errors.Is(err, cluster.ErrInvalid) {
			return a, err
		}
	}
	full := map[string]bool{}
	err = k.Registry.Pages().List(ctx, func(name string, raw []byte, _ string) {
		p, err := decodePage(name, raw)
		full[name] = err != nil || len(p.free(of)) == 0 // the pass reports a damaged page
	})
	if err != nil {
		return a, err
	}
	for _, first := range all {
		if full[pageName(d.Pool, first)] {
			continue
		}
		a, err = k.lastFree(ctx, d.Pool, first, of)
		if a.IsValid() || err != nil && !errors.Is(err, errDeleted) {
			return a, err
		}
	}
	return a, errors.Join(err, fmt.Errorf("%w: give the network %q a larger range, or delete containers", errNone, d.Network), k.reclaim(ctx, d.Pool))
}

// lastFree returns the last free address of a page, or an invalid one.
func (k *Keeper) lastFree(ctx context.Context, pool string, first netip.Addr, of []leasing.Interval) (a netip.Addr, err error) {
	var incomplete error
	err = k.change(ctx, pageName(pool, first), func(p *page) bool {
		p.Pool, p.First = pool, first
		free := p.free(of)
		if incomplete = k.checkDeleted(p.name()); len(free) > 0 && incomplete == nil {
			a = free[len(free)-1].Hi
		}
		return false
	})
	return a, cmp.Or(err, incomplete)
}

// takeAddresses takes the addresses of a reservation in their pages. conflict is the text of what has the i-th address
// otherwise.
func (k *Keeper) takeAddresses(ctx context.Context, r *reservation) (i int, conflict string, err error) {
	for i, a := range r.Addresses {
		err := k.change(ctx, pageName(r.Pool, pageOf(a)), func(p *page) bool {
			p.Pool, p.First = r.Pool, pageOf(a)
			conflict = p.reserve(a, r.ID, k.Host.Now())
			return conflict == ""
		})
		if conflict != "" || err != nil {
			return i, conflict, err
		}
	}
	_, err = k.update(ctx, r, func(_ *register, now *reservation) bool {
		if now.State != taking || !slices.Equal(now.Addresses, r.Addresses) {
			return false
		}
		now.State = reserved
		return true
	})
	return 0, "", err
}

// free deletes a reservation without holders. It writes each page, so that older writes that add an address of the
// reservation fail.
func (k *Keeper) free(ctx context.Context, seen *reservation) error {
	var addrs []netip.Addr
	ok, err := k.update(ctx, seen, func(_ *register, r *reservation) bool {
		if len(r.Holders) > 0 {
			return false
		}
		r.State, r.Last, addrs = freeing, k.Node, r.Addresses
		return true
	})
	if !ok {
		return err
	}
	for _, a := range addrs {
		err := k.change(ctx, pageName(seen.Pool, pageOf(a)), func(p *page) bool {
			p.Blocks = slices.DeleteFunc(p.Blocks, func(b block) bool { return b.Reserved == seen.ID && b.First == a })
			return p.First.IsValid() // else there is no page
		})
		if err != nil {
			return err
		}
	}
	_, err = k.update(ctx, seen, func(g *register, r *reservation) bool {
		g.Reservations = slices.DeleteFunc(g.Reservations, func(o *reservation) bool { return o == r })
		return true
	})
	k.log.Info("a reservation is free", "reservation", seen.Key, "network", seen.Network, "addresses", addrs)
	return err
}
