package store_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store"
)

func TestStickyRefuses(t *testing.T) {
	s := newStore(t)
	for name, r := range map[string]*store.Reservation{
		"no identity":   reservation("", "10.1.0.1"),
		"no address":    reservation("web"),
		"twice":         reservation("web", "10.1.0.1", "::ffff:10.1.0.1"),
		"not UTF-8":     reservation("a\xff", "10.1.0.1"),
		"long identity": reservation(strings.Repeat("x", bolt.MaxKeySize), "10.1.0.1"),
		"zone":          reservation("web", "fe80::1%eth0"),
	} {
		err := s.KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
			p, err := tx.Sticky(pool)
			if err != nil {
				return err
			}
			return p.Put(r)
		})
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := s.KeepView(t.Context(), func(tx *store.KeepTx) error {
		p, err := tx.Sticky(pool)
		if err != nil {
			return err
		}
		if _, err := p.ReservationAt(addr("10.1.0.1")); !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
		if p.Put(reservation("web", "10.1.0.1")) == nil || p.Delete("web") == nil || p.SetBoot("x") == nil {
			t.Error("a view writes")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A record that cannot be decoded keeps its addresses until it is deleted or another
// identity takes them. After that nothing of it is left.
func TestDamagedReservation(t *testing.T) {
	for _, how := range []string{"deleted", "taken", "replaced"} {
		s := newStore(t)
		sticky(t, s, func(p *store.StickyPool) error {
			r := reservation("web", "10.1.0.1", "fd00::1")
			r.Released = testTime
			return p.Put(r)
		})
		plantSticky(t, s.KeepPath(), []byte("Iweb"), []byte("{"))
		sticky(t, s, func(p *store.StickyPool) error {
			if _, err := p.ReservationAt(addr("10.1.0.1")); !errors.Is(err, store.ErrDamaged) {
				t.Errorf("read: %v", err)
			}
			if _, free, err := p.Next(addr("10.1.0.1"), addr("10.1.0.1")); free || err != nil {
				t.Errorf("its address is free: %v, %v", free, err)
			}
			switch how {
			case "deleted":
				return p.Delete("web")
			case "taken":
				return p.Put(reservation("db", "10.1.0.1"))
			}
			return p.Put(reservation("web", "10.1.0.1"))
		})
		sticky(t, s, func(p *store.StickyPool) error {
			if _, free, err := p.Next(addr("fd00::1"), addr("fd00::1")); !free || err != nil {
				t.Errorf("%s: its other address is not free: %v", how, err)
			}
			for w, err := range p.Waiting() {
				t.Errorf("%s: %q waits, %v", how, w.Identity, err)
			}
			return nil
		})
	}
}

// An empty keep.db is an error and not silently replaced: nothing can rebuild its
// content.
func TestEmptyKeepIsDamaged(t *testing.T) {
	s := newStore(t)
	sticky(t, s, func(p *store.StickyPool) error { return p.Put(reservation("web", "10.1.0.1")) })
	if err := os.Truncate(s.KeepPath(), 0); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		s.KeepView(t.Context(), func(*store.KeepTx) error { return nil }),
		s.KeepUpdate(t.Context(), func(*store.KeepTx) error { return nil }),
	} {
		if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "cut short at 0 bytes") || !strings.Contains(err.Error(), "run 'cnibox state repair'") {
			t.Errorf("%v", err)
		}
	}
}

// Any stored key and record of a sticky pool is usable or an ErrDamaged.
func FuzzReservation(f *testing.F) {
	o := options(f)
	s := store.New(o)
	sticky(f, s, func(p *store.StickyPool) error {
		r := reservation("web", "10.1.0.1", "fd00::1")
		r.Released = testTime
		return errors.Join(p.Put(reservation("held", "10.1.0.2")), p.Put(r))
	})
	sound, err := os.ReadFile(s.KeepPath())
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("Iweb"), []byte(`{"addresses":["10.1.0.1","1.2.3.4"],"ttl":9223372036854775807,"released":"9999-01-01T00:00:00Z"}`))
	f.Add([]byte("Iheld"), []byte(`{"addresses":null,"x":1}`))
	f.Add([]byte("Iweb"), []byte(`[]`))
	f.Add([]byte{'A', 4, 10, 1, 0, 1}, []byte("nobody"))
	f.Add([]byte{'A', 4, 10, 1}, []byte("web"))
	f.Add([]byte("W12345678x"), []byte("123456789"))
	f.Add([]byte("W"), []byte(nil))
	f.Add([]byte{'C', 4, 10, 1, 0, 0}, []byte{1, 2})
	f.Fuzz(func(t *testing.T, k, v []byte) {
		if len(k) == 0 || len(k) > 1000 || len(v) > 100_000 {
			return
		}
		if err := os.WriteFile(s.KeepPath(), sound, 0o600); err != nil {
			t.Fatal(err)
		}
		plantSticky(t, s.KeepPath(), k, v)
		for range 2 {
			err := s.KeepUpdate(t.Context(), useSticky)
			if err != nil && !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrInvalid) {
				t.Error(err)
			}
		}
	})
}

// plantSticky stores a record in every sticky pool.
func plantSticky(t *testing.T, path string, k, v []byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		pools := tx.Bucket([]byte("sticky"))
		return pools.ForEachBucket(func(id []byte) error { return pools.Bucket(id).Put(k, v) })
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// useSticky reads everything and writes what it read, and more.
func useSticky(tx *store.KeepTx) error {
	p, err := tx.Sticky(pool)
	if err != nil {
		return err
	}
	var all []store.Reservation
	var faults []error
	for r, err := range p.All() {
		faults = append(faults, err)
		if err == nil {
			all = append(all, r)
		}
	}
	for w, err := range p.Waiting() {
		_ = w.Stage(testTime)
		faults = append(faults, err)
	}
	for i := range all {
		_ = all[i].Stage(testTime)
		faults = append(faults, p.Put(&all[i]))
	}
	_, err = p.Forget(testTime, 10)
	return errors.Join(append(faults, err, p.Put(reservation("new", "10.1.0.1", "10.1.0.2")), p.Delete("web"), p.Delete("held"))...)
}
