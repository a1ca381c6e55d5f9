package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// model is a simple pool.
type model map[netip.Addr]store.Key

func (m model) next(from, to netip.Addr) (netip.Addr, bool) {
	for a := from; a.IsValid() && a.Compare(to) <= 0; a = a.Next() {
		if _, used := m[a]; !used {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func (m model) owned(k store.Key) []netip.Addr {
	var all []netip.Addr
	for a, o := range m {
		if o == k {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

func addresses(leases []store.Lease) []netip.Addr {
	var all []netip.Addr
	for _, l := range leases {
		all = append(all, l.Address)
	}
	return all
}

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// Random calls have the same results for a pool and for the model, across chunk
// borders and in both families.
func TestPoolLikeModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			s := newStore(t)
			m := model{}
			bases := []netip.Addr{addr("10.1.15.240"), addr("255.255.255.220"), addr("fd00::ff0"), addr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffe0"), addr("fd00::ffff:ffff:ffff:fff0")}
			random := func() netip.Addr {
				a := bases[rnd.IntN(len(bases))]
				for range rnd.IntN(32) {
					if n := a.Next(); n.IsValid() {
						a = n
					}
				}
				return a
			}
			for range 40 {
				update(t, s, func(tx *store.Tx) error {
					p, err := tx.Pool(pool)
					if err != nil {
						return err
					}
					for range 50 {
						step(t, rnd, tx, p, m, random)
					}
					return nil
				})
				view(t, s, func(tx *store.Tx) error { compare(t, tx, m, random); return nil })
			}
		})
	}
}

func step(t *testing.T, rnd *rand.Rand, tx *store.Tx, p *store.Pool, m model, random func() netip.Addr) {
	t.Helper()
	a, k := random(), key("net", fmt.Sprint(rnd.IntN(20)))
	switch rnd.IntN(8) {
	case 0:
		if err := p.Release(a); err != nil {
			t.Error(err)
		}
		delete(m, a)
	case 1:
		got, err := tx.DeleteLeases(k)
		if err != nil {
			t.Error(err)
		}
		want := m.owned(k)
		if d := cmp.Diff(want, addresses(got), sameAddr); d != "" {
			t.Error(d)
		}
		for _, a := range want {
			delete(m, a)
		}
	default:
		err := p.Reserve(store.Lease{Address: a, Owner: k, Time: testTime})
		holder, used := m[a]
		var taken *store.TakenError
		switch {
		case used && (!errors.As(err, &taken) || taken.Owner != holder || !errors.Is(err, store.ErrTaken)):
			t.Errorf("reserve %s of %v: %v", a, holder, err)
		case !used && err != nil:
			t.Error(err)
		case !used:
			m[a] = k
		}
	}
}

func compare(t *testing.T, tx *store.Tx, m model, random func() netip.Addr) {
	t.Helper()
	p, err := tx.Pool(pool)
	if err != nil {
		t.Fatal(err)
	}
	var last netip.Addr
	n := 0
	for l, err := range p.Leases() {
		if err != nil || m[l.Address] != l.Owner || last.IsValid() && !last.Less(l.Address) {
			t.Errorf("lease %v after %s: %v", l, last, err)
		}
		last = l.Address
		n++
	}
	if c, err := p.Count(); n != len(m) || c != n || err != nil {
		t.Errorf("%d leases, %d bits, %v; want %d", n, c, err, len(m))
	}
	for range 50 {
		from := random()
		to := from
		for range 40 {
			if to.Next().IsValid() {
				to = to.Next()
			}
		}
		want, wantOK := m.next(from, to)
		if got, ok, err := p.Next(from, to); got != want || ok != wantOK || err != nil {
			t.Errorf("next of %s to %s: %v %v %v; want %v %v", from, to, got, ok, err, want, wantOK)
		}
		l, err := p.Lease(from)
		if k, used := m[from]; used && (err != nil || l.Owner != k) || !used && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("lease of %s: %v, %v", from, l, err)
		}
	}
	for i := range 20 {
		k := key("net", fmt.Sprint(i))
		own, err := tx.LeasesOf(k)
		if d := cmp.Diff(m.owned(k), addresses(own), sameAddr); d != "" || err != nil {
			t.Errorf("%v %s", err, d)
		}
	}
}

func TestFullSixteen(t *testing.T) {
	s := newStore(t)
	from, to := addr("10.1.0.0"), addr("10.1.255.255")
	next := func(tx *store.Tx, from, to, want string) {
		t.Helper()
		p, err := tx.Pool(pool)
		if err != nil {
			t.Fatal(err)
		}
		a, ok, err := p.Next(addr(from), addr(to))
		if err != nil || ok != (want != "") || ok && a != addr(want) {
			t.Errorf("next of %s to %s: %v %v %v; want %q", from, to, a, ok, err, want)
		}
	}
	fill(t, s, pool, from, 65536)
	update(t, s, func(tx *store.Tx) error {
		next(tx, from.String(), to.String(), "")
		next(tx, "10.1.3.3", "10.1.3.3", "")
		next(tx, "10.0.255.255", "10.2.0.0", "10.0.255.255")
		next(tx, "10.1.0.0", "10.2.0.0", "10.2.0.0")
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		if n, err := p.Count(); n != 65536 || err != nil {
			t.Errorf("count %d, %v", n, err)
		}
		return errors.Join(p.Release(addr("10.1.255.255")), p.Release(addr("10.1.16.0")), p.Release(addr("10.1.15.255")))
	})
	view(t, s, func(tx *store.Tx) error {
		next(tx, from.String(), to.String(), "10.1.15.255")
		next(tx, "10.1.16.0", to.String(), "10.1.16.0")
		next(tx, "10.1.16.1", to.String(), to.String())
		next(tx, "10.1.16.1", "10.1.255.254", "")
		next(tx, "10.1.9.9", "10.1.9.8", "")
		return nil
	})
}

func TestHugeRange(t *testing.T) {
	s := newStore(t)
	from, to := addr("fd00:1:2:3::"), addr("fd00:1:2:3:ffff:ffff:ffff:ffff")
	fill(t, s, pool, from, 20000)
	fill(t, s, store.PoolID{DataDir: "/other", Network: "net"}, to, 1)
	view(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		for _, c := range [][2]string{{"fd00:1:2:3::", "fd00:1:2:3::4e20"}, {"fd00:1:2:3:8000::", "fd00:1:2:3:8000::"}, {to.String(), to.String()}, {"::", "::"}} {
			if a, ok, err := p.Next(addr(c[0]), addr("ffff::")); !ok || err != nil || a != addr(c[1]) {
				t.Errorf("next from %s: %v %v %v", c[0], a, ok, err)
			}
		}
		return nil
	})
}

func TestPoolsApart(t *testing.T) {
	s := newStore(t)
	a := addr("10.1.0.1")
	ids := []store.PoolID{{Network: "net", DataDir: "/a"}, {Network: "net", DataDir: "/b"}, {Network: "net\x00", DataDir: "/a"}, {Network: "ne", DataDir: "t/a"}}
	update(t, s, func(tx *store.Tx) error {
		for _, id := range ids {
			p, err := tx.Pool(id)
			if err != nil {
				return err
			}
			if err := p.Reserve(store.Lease{Address: a, Owner: key(id.Network, "c")}); err != nil {
				return err
			}
			if err := p.SetCursor(1, a); err != nil {
				return err
			}
		}
		return nil
	})
	update(t, s, func(tx *store.Tx) error {
		got, err := tx.Pools()
		if d := cmp.Diff([]store.PoolID{ids[3], ids[0], ids[1], ids[2]}, got); d != "" || err != nil {
			t.Errorf("%v %s", err, d)
		}
		gone, err := tx.DeleteLeases(key("net", "c"))
		if len(gone) != 2 || err != nil {
			t.Errorf("deleted %v, %v", gone, err)
		}
		left, err := tx.LeasesOf(key("net\x00", "c"))
		if len(left) != 1 || err != nil {
			t.Errorf("left %v, %v", left, err)
		}
		return nil
	})
	view(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(ids[0])
		if err != nil {
			return err
		}
		if c, ok, err := p.Cursor(1); c != a || !ok || err != nil {
			t.Errorf("cursor %v %v %v", c, ok, err)
		}
		if _, ok, err := p.Cursor(0); ok || err != nil {
			t.Errorf("cursor 0: %v %v", ok, err)
		}
		return nil
	})
}

// A pool whose leases are gone has neither index nor bitmap.
func TestPoolLeavesNothing(t *testing.T) {
	s := newStore(t)
	fill(t, s, pool, addr("10.1.0.0"), 5000)
	update(t, s, func(tx *store.Tx) error {
		for i := range 5000 {
			if _, err := tx.DeleteLeases(key("net", fmt.Sprintf("%064d", i))); err != nil {
				return err
			}
		}
		return nil
	})
	raw(t, s.Path(), func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("pools")).ForEachBucket(func(id []byte) error {
			return tx.Bucket([]byte("pools")).Bucket(id).ForEach(func(k, _ []byte) error {
				t.Errorf("left %q", k)
				return nil
			})
		})
	})
}

func TestPoolRefuses(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		bad := map[string]error{
			"no address":      p.Reserve(store.Lease{Owner: key("net", "c")}),
			"a zone":          p.Reserve(store.Lease{Address: addr("fe80::1%eth0"), Owner: key("net", "c")}),
			"another network": p.Reserve(store.Lease{Address: addr("10.0.0.1"), Owner: key("other", "c")}),
			"no UTF-8":        p.Reserve(store.Lease{Address: addr("10.0.0.1"), Owner: key("net", "\xff")}),
			"negative set":    p.SetCursor(-1, addr("10.0.0.1")),
			"cursor nowhere":  p.SetCursor(1, netip.Addr{}),
			"release nothing": p.Release(netip.Addr{}),
		}
		_, _, bad["two families"] = p.Next(addr("10.0.0.1"), addr("::1"))
		_, _, bad["next of nothing"] = p.Next(netip.Addr{}, addr("::1"))
		for name, err := range bad {
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := p.Reserve(store.Lease{Address: addr("::ffff:10.0.0.1"), Owner: key("net", "c")}); err != nil {
			return err
		}
		if _, err := p.Lease(addr("10.0.0.1")); err != nil {
			t.Errorf("mapped address: %v", err)
		}
		return nil
	})
}
