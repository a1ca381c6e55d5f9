package store_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store"
)

// TestFreedLikeModel: random leases and releases leave the same times as in a map,
// across chunk borders and in both families.
func TestFreedLikeModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	now := testTime
	o := options(t)
	o.Now = func() time.Time { return now }
	s := store.New(o)
	id := store.PoolID{Network: "net", DataDir: store.CloudDataDir}
	freed := map[netip.Addr]time.Time{}
	bases := []netip.Addr{addr("10.1.15.240"), addr("fd00::ff0")}
	for range 30 {
		update(t, s, func(tx *store.Tx) error {
			p, err := tx.Pool(id)
			if err != nil {
				return err
			}
			for range 40 {
				a := bases[rnd.IntN(len(bases))]
				for range rnd.IntN(32) {
					a = a.Next()
				}
				now = now.Add(time.Duration(rnd.IntN(3)) * time.Second)
				if _, err := p.Lease(a); err == nil {
					if err := p.Release(a); err != nil {
						return err
					}
					freed[a] = now
					continue
				}
				if err := p.Reserve(store.Lease{Address: a, Owner: key("net", fmt.Sprint(rnd.IntN(9))), Time: now}); err != nil {
					return err
				}
				delete(freed, a)
			}
			f, err := tx.Freed(id)
			if err != nil {
				return err
			}
			before := now.Add(-time.Duration(rnd.IntN(60)) * time.Second)
			for i, one := range oldest(freed) {
				if i < 4 && one.Released.Before(before) {
					delete(freed, one.Address)
				}
			}
			return f.Forget(before, 4)
		})
		view(t, s, func(tx *store.Tx) error { return compareFreed(t, tx, id, freed, bases) })
	}
}

// oldest is the order of Freed.Oldest.
func oldest(freed map[netip.Addr]time.Time) []store.FreedAddress {
	var all []store.FreedAddress
	for a, at := range freed {
		all = append(all, store.FreedAddress{Address: a, Released: at})
	}
	slices.SortFunc(all, func(a, b store.FreedAddress) int {
		return cmp.Or(a.Released.Compare(b.Released), a.Address.Compare(b.Address))
	})
	return all
}

func compareFreed(t *testing.T, tx *store.Tx, id store.PoolID, freed map[netip.Addr]time.Time, bases []netip.Addr) error {
	t.Helper()
	f, err := tx.Freed(id)
	if err != nil {
		return err
	}
	var have []store.FreedAddress
	for one, err := range f.Oldest() {
		if err != nil {
			return err
		}
		if at, ok := f.At(one.Address); !ok || !at.Equal(one.Released) {
			t.Errorf("%s is free since %v, %v", one.Address, at, ok)
		}
		have = append(have, one)
	}
	if diff := gocmp.Diff(oldest(freed), have, sameAddr); diff != "" {
		t.Fatal(diff)
	}
	for _, from := range bases {
		m := model{}
		for a := range freed {
			m[a] = store.Key{}
		}
		to := from
		for range 40 {
			to = to.Next()
		}
		want, ok := m.next(from, to)
		if got, found, err := f.Next(from, to); err != nil || found != ok || got != want {
			t.Errorf("next of %s: %s, %v, %v; want %s", from, got, found, err, want)
		}
	}
	return nil
}

// TestFreedOfOthers: a pool that is not a cloud's has no released addresses.
func TestFreedOfOthers(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		if err := p.Reserve(store.Lease{Address: addr("10.1.0.2"), Owner: key("net", "c")}); err != nil {
			return err
		}
		if err := p.Release(addr("10.1.0.2")); err != nil {
			return err
		}
		f, err := tx.Freed(pool)
		if err != nil {
			return err
		}
		if at, ok := f.At(addr("10.1.0.2")); ok {
			t.Errorf("free since %v", at)
		}
		return nil
	})
}
