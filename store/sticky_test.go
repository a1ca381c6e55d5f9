package store_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// sticky runs fn on the reservations of the tests' pool.
func sticky(t testing.TB, s *store.Store, fn func(*store.StickyPool) error) {
	t.Helper()
	err := s.KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
		p, err := tx.Sticky(pool)
		if err != nil {
			return err
		}
		return fn(p)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func reservation(identity string, addrs ...string) *store.Reservation {
	r := &store.Reservation{Identity: identity, Holder: key("net", identity), TTL: 300, Cooldown: 30, Created: testTime, Used: testTime}
	for _, a := range addrs {
		r.Addresses = append(r.Addresses, addr(a))
	}
	return r
}

func TestStages(t *testing.T) {
	at := func(seconds int) time.Time { return testTime.Add(time.Duration(seconds) * time.Second) }
	type want struct {
		seconds int
		stage   store.Stage
	}
	cases := map[string]struct {
		change  func(*store.Reservation)
		want    []want
		expires string
	}{
		"held":               {func(r *store.Reservation) { r.Released = time.Time{} }, []want{{0, store.Held}, {1e9, store.Held}}, "never"},
		"released":           {func(*store.Reservation) {}, []want{{0, store.Kept}, {299, store.Kept}, {300, store.Expired}}, "300"},
		"long cool-down":     {func(r *store.Reservation) { r.Cooldown = 400 }, []want{{299, store.Kept}, {300, store.Cooling}, {399, store.Cooling}, {400, store.Expired}}, "300"},
		"never expires":      {func(r *store.Reservation) { r.TTL = store.KeepForever }, []want{{1e9, store.Kept}}, "never"},
		"just cools":         {func(r *store.Reservation) { r.TTL = 0 }, []want{{0, store.Cooling}, {30, store.Expired}}, "0"},
		"neither":            {func(r *store.Reservation) { r.TTL, r.Cooldown = 0, 0 }, []want{{0, store.Expired}}, "0"},
		"pinned":             {func(r *store.Reservation) { r.Pinned = true }, []want{{1e9, store.Kept}}, "never"},
		"pinned for a while": {func(r *store.Reservation) { r.Pinned, r.Until = true, at(1000) }, []want{{999, store.Kept}, {1000, store.Expired}}, "1000"},
		"pinned for less":    {func(r *store.Reservation) { r.Pinned, r.Until = true, at(10) }, []want{{299, store.Kept}, {300, store.Expired}}, "300"},
		"pinned, never had": {func(r *store.Reservation) {
			r.Holder, r.Released, r.Pinned, r.Until = store.Key{}, time.Time{}, true, at(5)
		}, []want{{4, store.Kept}, {5, store.Expired}}, "5"},
		"endless numbers":  {func(r *store.Reservation) { r.TTL, r.Cooldown = 1<<62, 1<<62 }, []want{{1e9, store.Kept}}, "never"},
		"negative numbers": {func(r *store.Reservation) { r.TTL, r.Cooldown = 0, -1<<62 }, []want{{0, store.Expired}}, "0"},
		"of another age":   {func(r *store.Reservation) { r.Released = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }, []want{{0, store.Kept}}, "never"},
		"clock put back":   {func(r *store.Reservation) { r.Released = at(1000) }, []want{{0, store.Kept}, {1299, store.Kept}, {1300, store.Expired}}, "1300"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := reservation("web", "10.1.0.1")
			r.Released = testTime
			c.change(r)
			for _, w := range c.want {
				if got := r.Stage(at(w.seconds)); got != w.stage {
					t.Errorf("after %d s: %s, want %s", w.seconds, got, w.stage)
				}
			}
			got := "never"
			if e, ok := r.Expires(); ok {
				got = fmt.Sprint(int(e.Sub(testTime).Seconds()))
			}
			if got != c.expires {
				t.Errorf("expires %s, want %s", got, c.expires)
			}
			s := newStore(t)
			sticky(t, s, func(p *store.StickyPool) error {
				if err := p.Put(r); err != nil {
					return err
				}
				for _, w := range c.want {
					for x, err := range p.Waiting() {
						if err != nil || x.Stage(at(w.seconds)) != w.stage || x.Pinned != r.Pinned {
							t.Errorf("waiting after %d s: %s, %v", w.seconds, x.Stage(at(w.seconds)), err)
						}
					}
				}
				return nil
			})
		})
	}
}

// stickyModel is a simple StickyPool.
type stickyModel map[string]*store.Reservation

func (m stickyModel) put(r *store.Reservation) {
	for id, o := range m {
		if id == r.Identity {
			continue
		}
		n := len(o.Addresses)
		o.Addresses = slices.DeleteFunc(o.Addresses, func(a netip.Addr) bool { return slices.Contains(r.Addresses, a) })
		if len(o.Addresses) == 0 {
			delete(m, id)
		} else if len(o.Addresses) < n {
			o.TTL, o.Pinned, o.Until = 0, false, time.Time{}
		}
	}
	c := *r
	c.Addresses = slices.Clone(r.Addresses)
	m[r.Identity] = &c
}

func (m stickyModel) at(a netip.Addr) string {
	for id, r := range m {
		if slices.Contains(r.Addresses, a) {
			return id
		}
	}
	return ""
}

// Random calls have the same results for the reservations and for the model.
func TestStickyLikeModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			s := newStore(t)
			m := stickyModel{}
			v4 := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(rnd.IntN(24))}) }
			v6 := func() netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 15: byte(rnd.IntN(24))}) }
			for range 40 {
				sticky(t, s, func(p *store.StickyPool) error {
					for range 20 {
						id := fmt.Sprint("id", rnd.IntN(16))
						if rnd.IntN(4) == 0 {
							delete(m, id)
							if err := p.Delete(id); err != nil {
								return err
							}
							continue
						}
						r := &store.Reservation{Identity: id, Addresses: []netip.Addr{v4()}, Created: testTime, TTL: int64(rnd.IntN(100) - 1), Cooldown: 50, Pinned: rnd.IntN(5) == 0}
						if rnd.IntN(2) == 0 {
							r.Addresses = append(r.Addresses, v6())
						}
						if rnd.IntN(3) > 0 {
							r.Holder = key("net", id)
						}
						if rnd.IntN(2) == 0 {
							r.Released = testTime.Add(time.Duration(rnd.IntN(100)) * time.Second)
						}
						m.put(r)
						if err := p.Put(r); err != nil {
							return err
						}
					}
					return sameAsModel(t, p, m)
				})
			}
		})
	}
}

func sameAsModel(t *testing.T, p *store.StickyPool, m stickyModel) error {
	t.Helper()
	seen := 0
	for r, err := range p.All() {
		if err != nil {
			return err
		}
		seen++
		if want := m[r.Identity]; want == nil || !slices.Equal(want.Addresses, r.Addresses) || want.TTL != r.TTL || want.Pinned != r.Pinned {
			t.Fatalf("%+v, want %+v", r, want)
		}
	}
	waiting := 0
	for _, r := range m {
		if !r.Held() {
			waiting++
		}
	}
	var last time.Time
	for w, err := range p.Waiting() {
		if err != nil {
			return err
		}
		r := m[w.Identity]
		if r == nil || r.Held() {
			t.Fatalf("%q waits", w.Identity)
		}
		free, ok := r.Free()
		if ok && free.Before(last) {
			t.Fatalf("%q waits behind one that is free later", w.Identity)
		}
		last = free
		waiting--
	}
	if seen != len(m) || waiting != 0 {
		t.Fatalf("%d reservations, want %d; %d that wait are not listed", seen, len(m), waiting)
	}
	for i := range 24 {
		a := netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})
		if got, _, err := p.At(a); err != nil || got != m.at(a) {
			t.Fatalf("%s: %q, want %q; %v", a, got, m.at(a), err)
		}
		next, ok, err := p.Next(a, a)
		if err != nil || ok != (m.at(a) == "") || ok && next != a {
			t.Fatalf("next at %s: %s, %v, %v; %q has it", a, next, ok, err, m.at(a))
		}
	}
	return nil
}

// Pinned, kept and cooling reservations are never forgotten.
func TestForgetReservations(t *testing.T) {
	s := newStore(t)
	sticky(t, s, func(p *store.StickyPool) error {
		for i := range 10 {
			r := reservation(fmt.Sprint("id", i), fmt.Sprint("10.1.0.", i))
			r.Released = testTime.Add(time.Duration(i) * time.Minute)
			r.Pinned = i == 1
			if i == 2 {
				r.TTL = store.KeepForever
			}
			if err := p.Put(r); err != nil {
				return err
			}
		}
		for _, c := range []struct{ limit, want int }{{3, 3}, {-1, 3}, {100, 0}} {
			n, err := p.Forget(testTime.Add(12*time.Minute), c.limit)
			if err != nil || n != c.want {
				t.Errorf("forgot %d, want %d; %v", n, c.want, err)
			}
		}
		var left []string
		for r, err := range p.All() {
			if err != nil {
				return err
			}
			left = append(left, r.Identity)
		}
		if want := []string{"id1", "id2", "id8", "id9"}; !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
		return nil
	})
}
