package store_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store"
)

// Any file as node.db is usable or gives an error: no panic, no hang, and the lock is
// free afterwards. Half of the inputs get the meta pages of a sound file, so that
// bbolt follows what is behind them. Files whose pages form a cycle are left out:
// bbolt's stack overflows, and no Go program survives that.
func FuzzOpen(f *testing.F) {
	o, path := filled(f, 60)
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(nil), false)
	f.Add([]byte("garbage"), false)
	f.Add(whole, false)
	f.Add(whole[8192:], true)
	f.Add(make([]byte, len(whole)), true)
	s := store.New(o)
	f.Fuzz(func(t *testing.T, b []byte, meta bool) {
		if meta {
			b = append(whole[:8192:8192], b...)
		}
		if circular(b) {
			return
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			s.View(t.Context(), readAll),
			s.Update(t.Context(), func(tx *store.Tx) error { return attach(tx, "z", 1) }),
			s.View(t.Context(), readAll),
		} {
			if errors.Is(err, store.ErrBusy) {
				t.Error(err)
			}
		}
	})
}

// circular reports whether a page leads to itself, from either meta page's root. The
// layout is that of bbolt's internal/common/page.go.
func circular(b []byte) bool {
	e := binary.NativeEndian
	onPath := map[uint64]bool{}
	visits := 0
	var walk func(id uint64) bool
	walk = func(id uint64) bool {
		if id >= uint64(len(b)/4096) {
			return false
		}
		if visits++; onPath[id] || visits > 100_000 {
			return true
		}
		onPath[id] = true
		defer delete(onPath, id)
		page := b[id*4096:]
		flags, count := e.Uint16(page[8:]), int(e.Uint16(page[10:]))
		for at := 16; count > 0 && at+16 <= len(page); at, count = at+16, count-1 {
			child := uint64(0)
			switch {
			case flags == 1:
				child = e.Uint64(page[at+8:])
			case flags == 2 && e.Uint32(page[at:]) == 1:
				value := uint64(at) + uint64(e.Uint32(page[at+4:])) + uint64(e.Uint32(page[at+8:]))
				if value+8 <= uint64(len(page)) {
					child = e.Uint64(page[value:])
				}
			}
			if child != 0 && walk(child) {
				return true
			}
		}
		return false
	}
	return len(b) >= 8192 && (walk(e.Uint64(b[32:])) || walk(e.Uint64(b[4096+32:])))
}

// Any stored key and record is usable or an ErrDamaged, in every place.
func FuzzRecord(f *testing.F) {
	o, path := filled(f, 1)
	f.Add([]byte("net\x00\x01f-0\x00\x01eth0\x00\x01"), []byte(`{"parts":[{"role":"bridge","x":1}],"netns":{"y":[]},"addresses":["10.0.0.1/8"],"z":null}`))
	f.Add([]byte{'L', 4, 10, 1, 0, 1}, []byte(`{"address":"10.1.0.1","owner":{"network":"net"}}`))
	f.Add([]byte{'C', 4, 10, 1, 0, 0}, []byte{1})
	f.Add([]byte{'R', 0, 0, 0, 1}, []byte("10.0.0.1"))
	f.Add([]byte("\x00"), []byte(`null`))
	sound, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	s := store.New(o)
	f.Fuzz(func(t *testing.T, k, v []byte) {
		if len(k) == 0 || len(k) > 1000 || len(v) > 100_000 {
			return
		}
		if err := os.WriteFile(path, sound, 0o600); err != nil {
			t.Fatal(err)
		}
		plant(t, path, k, v)
		for _, fn := range []func(*store.Tx) error{readAll, useAll, readAll} {
			if err := s.Update(t.Context(), fn); err != nil && !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrTaken) && !errors.Is(err, store.ErrInvalid) {
				t.Error(err)
			}
		}
	})
}

// plant stores a record in every bucket.
func plant(t *testing.T, path string, k, v []byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		pools := tx.Bucket([]byte("pools"))
		var faults []error
		_ = pools.ForEachBucket(func(id []byte) error {
			faults = append(faults, pools.Bucket(id).Put(k, v))
			return nil
		})
		if _, err := pools.CreateBucketIfNotExists(k); err != nil {
			return err
		}
		for _, name := range []string{"attachments", "networks", "claims", "claimOwners"} {
			faults = append(faults, tx.Bucket([]byte(name)).Put(k, v))
		}
		return errors.Join(faults...)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// useAll writes what it reads, and more.
func useAll(tx *store.Tx) error {
	d, err := tx.Export()
	faults := []error{err}
	for i := range d.Attachments {
		faults = append(faults, tx.PutAttachment(&d.Attachments[i]))
		_, err := tx.DeleteLeases(d.Attachments[i].Key)
		faults = append(faults, err, tx.Unclaim(d.Attachments[i].Key))
	}
	for i := range d.Networks {
		faults = append(faults, tx.PutNetwork(&d.Networks[i]))
	}
	p, err := tx.Pool(pool)
	if err != nil {
		return err
	}
	_, cerr := p.Count()
	return errors.Join(append(faults, attach(tx, "x", 1), attach(tx, "f", 0), p.Release(addr("10.1.0.1")), cerr)...)
}

// Any dump is imported or refused. An imported one is exported unchanged.
func FuzzImport(f *testing.F) {
	o, _ := filled(f, 2)
	sound := dumpOf(f, store.New(o))
	f.Add(sound, true)
	f.Add(sound, false)
	f.Add([]byte(`{"pools":[{"network":"n","leases":[{"address":"::ffff:1.2.3.4","owner":{"network":"n"}}],"cursors":{"-1":"1.2.3.4"}}]}`), true)
	f.Add([]byte(`{"attachments":[{"network":"\u0000","addresses":["1.2.3.4/33"]}],"claims":[{}]}`), false)
	o.RunDir = filepath.Join(f.TempDir(), "run")
	s := store.New(o)
	f.Fuzz(func(t *testing.T, b []byte, replace bool) {
		var d store.Dump
		if json.Unmarshal(b, &d) != nil {
			return
		}
		err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.Import(&d, replace) })
		if err != nil {
			if !errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrTaken) {
				t.Error(err)
			}
			return
		}
		view(t, s, func(tx *store.Tx) error {
			out, err := tx.Export()
			if err == nil && replace && len(out.Attachments) > len(d.Attachments) {
				t.Errorf("%d attachments of %d", len(out.Attachments), len(d.Attachments))
			}
			return err
		})
	})
}
