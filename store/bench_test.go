package store_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// BenchmarkUpdate opens, locks, stores one record, commits and closes.
func BenchmarkUpdate(b *testing.B) {
	s := newStore(b)
	a := attachment(key("net", "c1"))
	update(b, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
	for b.Loop() {
		update(b, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
	}
}

// BenchmarkView opens, locks, reads one record and closes.
func BenchmarkView(b *testing.B) {
	s := newStore(b)
	a := attachment(key("net", "c1"))
	update(b, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
	for b.Loop() {
		view(b, s, func(tx *store.Tx) error { _, err := tx.Attachment(a.Key); return err })
	}
}

// BenchmarkAllocate opens, locks, reserves the lowest free address of a /16, commits
// and closes.
func BenchmarkAllocate(b *testing.B) {
	for _, c := range []struct {
		name string
		used int
	}{{"0", 0}, {"50", 32768}, {"99.9", 65470}} {
		b.Run("full="+c.name, func(b *testing.B) { benchmarkAllocate(b, c.used) })
	}
}

func benchmarkAllocate(b *testing.B, used int) {
	s := newStore(b)
	id := store.PoolID{DataDir: "/var/lib/cni/networks", Network: "net"}
	from, to := netip.MustParseAddr("10.1.0.0"), netip.MustParseAddr("10.1.255.255")
	fill(b, s, id, from, used)
	allocate := func() netip.Addr {
		var a netip.Addr
		err := s.Update(context.Background(), func(tx *store.Tx) error {
			p, err := tx.Pool(id)
			if err != nil {
				return err
			}
			var ok bool
			a, ok, err = p.Next(from, to)
			if err != nil || !ok {
				return fmt.Errorf("next: %v %w", ok, err)
			}
			return p.Reserve(store.Lease{Address: a, Owner: key("net", "new"), Time: testTime})
		})
		if err != nil {
			b.Fatal(err)
		}
		return a
	}
	for b.Loop() {
		a := allocate()
		b.StopTimer()
		update(b, s, func(tx *store.Tx) error {
			p, err := tx.Pool(id)
			if err != nil {
				return err
			}
			return p.Release(a)
		})
		b.StartTimer()
	}
}

// fill reserves n addresses from an address on. It uses several transactions, because
// one with tens of thousands of new keys is slow: bbolt splits its pages at the end.
func fill(t testing.TB, s *store.Store, id store.PoolID, from netip.Addr, n int) {
	t.Helper()
	for i := 0; i < n; {
		update(t, s, func(tx *store.Tx) error {
			p, err := tx.Pool(id)
			for end := min(i+2000, n); i < end && err == nil; i++ {
				err = p.Reserve(store.Lease{Address: from, Owner: key(id.Network, fmt.Sprintf("%064d", i)), Time: testTime})
				from = from.Next()
			}
			return err
		})
	}
}
