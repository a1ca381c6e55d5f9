package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store"
)

// filled returns a store with n attachments and its file.
func filled(t testing.TB, n int) (store.Options, string) {
	t.Helper()
	o := options(t)
	s := store.New(o)
	update(t, s, func(tx *store.Tx) error {
		for i := range n {
			if err := attach(tx, "f", i); err != nil {
				return err
			}
		}
		return nil
	})
	return o, s.Path()
}

// readAll touches every page.
func readAll(tx *store.Tx) error {
	_, err := tx.Export()
	return err
}

func TestTruncated(t *testing.T) {
	o, path := filled(t, 300)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := len(whole)
	for _, size := range []int{1, 100, 4095, 4096, 4097, 8192, 12288, n / 2, n - 4096, n - 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
				t.Fatal(err)
			}
			s := store.New(o)
			for _, err := range []error{s.View(t.Context(), readAll), s.Update(t.Context(), readAll)} {
				if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "run 'cnibox state repair'") {
					t.Errorf("%v", err)
				}
			}
		})
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	checkSound(t, store.New(o), 300)
}

// Garbage in any page is an error, never the end of the process, and the lock is free
// afterwards.
func TestGarbagePages(t *testing.T) {
	o, path := filled(t, 300)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	garbage := bytes.Repeat([]byte{0xa5, 0x5a, 0x00, 0xff, 0x01, 0x02}, 4096/6)
	for page := 2; page < len(whole)/4096; page++ {
		b := bytes.Clone(whole)
		copy(b[page*4096:], garbage)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := store.New(o)
		for range 2 {
			if err := s.View(t.Context(), readAll); err != nil && !errors.Is(err, store.ErrDamaged) {
				t.Errorf("page %d: view: %v", page, err)
			}
			err := s.Update(t.Context(), func(tx *store.Tx) error { return errors.Join(readAll(tx), errors.New("roll back")) })
			if errors.Is(err, store.ErrBusy) {
				t.Errorf("page %d: update: %v", page, err)
			}
		}
	}
}

func TestGarbageFile(t *testing.T) {
	for _, content := range []string{"x", "not a database\n", strings.Repeat("\x00", 8192), strings.Repeat("\xff", 65536)} {
		o, path := filled(t, 0)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.New(o).Update(t.Context(), readAll); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%.10q: %v", content, err)
		}
	}
}

// The file is cut short while a transaction reads it.
func TestFaultInTransaction(t *testing.T) {
	o, path := filled(t, 300)
	s := store.New(o)
	cut := func(tx *store.Tx) error {
		if err := os.Truncate(path, 8192); err != nil {
			return err
		}
		return readAll(tx)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(context.Context, func(*store.Tx) error) error{"view": s.View, "update": s.Update} {
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), cut); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		checkSound(t, s, 300)
	}
}

// A caller's panic goes on. Its changes are rolled back and the lock is free.
func TestCallersPanic(t *testing.T) {
	s := newStore(t)
	for name, run := range map[string]func(context.Context, func(*store.Tx) error) error{"view": s.View, "update": s.Update} {
		func() {
			defer func() {
				if r := recover(); r != "mine" {
					t.Errorf("%s: recovered %v", name, r)
				}
			}()
			update(t, s, func(*store.Tx) error { return nil })
			err := run(t.Context(), func(tx *store.Tx) error {
				_ = tx.PutAttachment(attachment(key("net", "c1")))
				panic("mine")
			})
			t.Errorf("%s: %v", name, err)
		}()
		exited := make(chan struct{})
		go func() {
			defer close(exited)
			_ = run(context.Background(), func(*store.Tx) error { runtime.Goexit(); return nil })
		}()
		<-exited
		var p *store.Part
		func() {
			defer func() {
				if r := recover(); r == nil {
					t.Errorf("%s: no nil dereference", name)
				}
			}()
			_ = run(t.Context(), func(*store.Tx) error { p.State = store.Done; return nil })
		}()
	}
	checkSound(t, s, 0)
}

func TestEmptyFileIsMadeAnew(t *testing.T) {
	o, path := filled(t, 3)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	fresh := 0
	o.Fresh = func(context.Context, *store.Tx) error { fresh++; return nil }
	s := store.New(o)
	checkSound(t, s, 0)
	if fresh != 0 {
		t.Error("fresh ran in a view")
	}
	update(t, s, func(tx *store.Tx) error { return attach(tx, "a", 1) })
	checkSound(t, s, 1)
	if fresh != 1 {
		t.Errorf("fresh ran %d times", fresh)
	}
}

func TestNewerSchema(t *testing.T) {
	o, path := filled(t, 1)
	set := func(info string) {
		raw(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("info")).Put([]byte("info"), []byte(info)) })
	}
	raw(t, path, func(tx *bolt.Tx) error {
		if info := tx.Bucket([]byte("info")).Get([]byte("info")); !strings.HasPrefix(string(info), `{"schema":1,"minReader":1,`) {
			t.Errorf("every call decodes %s", info)
		}
		return nil
	})
	set(`{"schema":1,"minReader":1,`)
	update(t, store.New(o), func(tx *store.Tx) error {
		if _, err := tx.Info(); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("half an info: %v", err)
		}
		return nil
	})
	set(`{"schema":7,"minReader":1,"program":"v9","new":true}`)
	update(t, store.New(o), func(tx *store.Tx) error {
		info, err := tx.Info()
		if info.Schema != 7 {
			t.Errorf("info %+v", info)
		}
		return err
	})
	set(`{"schema":7,"minReader":6,"program":"v9"}`)
	err := store.New(o).View(t.Context(), readAll)
	if !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "schema 6, this one has 1") {
		t.Errorf("%v", err)
	}
	for _, info := range []string{``, `[]`, `{"schema":"x"}`} {
		set(info)
		if err := store.New(o).Update(t.Context(), readAll); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("info %q: %v", info, err)
		}
	}
	raw(t, path, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("info")) })
	if err := store.New(o).View(t.Context(), readAll); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("no info: %v", err)
	}
}

// raw changes the file behind the store's back.
func raw(t testing.TB, path string, fn func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fn), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// A record that cannot be decoded is named. The others are returned.
func TestDamagedRecord(t *testing.T) {
	o, path := filled(t, 3)
	k := []byte("net\x00\x01f-1\x00\x01eth0\x00\x01")
	raw(t, path, func(tx *bolt.Tx) error {
		leases := tx.Bucket([]byte("pools")).Bucket([]byte("net\x00\x01/var/lib/cni/networks\x00\x01"))
		return errors.Join(
			tx.Bucket([]byte("attachments")).Put(k, []byte(`{"pod": 1}`)),
			tx.Bucket([]byte("attachments")).Put([]byte("net\x00\x01no key"), []byte(`{}`)),
			leases.Put([]byte{'L', 4, 10, 1, 0, 2}, []byte{0xff}),
		)
	})
	s := store.New(o)
	addr := netip.MustParseAddr("10.1.0.2")
	update(t, s, func(tx *store.Tx) error {
		all, err := tx.Attachments("net")
		if len(all) != 2 || !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), `f-1`) || !strings.Contains(err.Error(), "attachments") {
			t.Errorf("%d attachments, %v", len(all), err)
		}
		if _, err := tx.Attachment(key("net", "f-1")); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("attachment: %v", err)
		}
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		n := 0
		for l, err := range p.Leases() {
			if err == nil {
				n++
			} else if !errors.Is(err, store.ErrDamaged) || l.Address.IsValid() {
				t.Errorf("lease %v, %v", l, err)
			}
		}
		if n != 2 {
			t.Errorf("%d leases", n)
		}
		if _, err := tx.DeleteLeases(key("net", "f-1")); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("delete leases: %v", err)
		}
		if d, err := tx.Export(); !errors.Is(err, store.ErrDamaged) || len(d.Attachments) != 2 || len(d.Pools[0].Leases) != 2 {
			t.Errorf("export %v", err)
		}
		if err := p.Reserve(store.Lease{Address: addr, Owner: key("net", "x")}); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("reserve: %v", err)
		}
		if err := p.Release(addr); err != nil {
			return err
		}
		if err := p.Reserve(store.Lease{Address: addr, Owner: key("net", "x")}); err != nil {
			return err
		}
		if own, err := p.Owned(key("net", "f-1")); len(own) != 0 || err != nil {
			t.Errorf("owned: %v %v", own, err)
		}
		return tx.PutAttachment(attachment(key("net", "f-1")))
	})
}

// Fields of a newer program stay when this one writes the record.
func TestUnknownFieldsStay(t *testing.T) {
	o, path := filled(t, 1)
	k := []byte("net\x00\x01f-0\x00\x01eth0\x00\x01")
	get := func() (m map[string]any) {
		raw(t, path, func(tx *bolt.Tx) error { return json.Unmarshal(tx.Bucket([]byte("attachments")).Get(k), &m) })
		return m
	}
	raw(t, path, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("attachments")).Put(k, []byte(`{"network":"net","containerID":"f-0","ifname":"eth0","pod":"a/b","color":{"r":1},
			"netns":{"path":"/x","cookie":12345678901234567890},
			"parts":[{"role":"firewall","state":"done","zone":"z"},{"role":"bridge","state":"pending","trunk":[1]}]}`))
	})
	update(t, store.New(o), func(tx *store.Tx) error {
		a, err := tx.Attachment(key("net", "f-0"))
		if err != nil {
			return err
		}
		a.Pod = ""
		*a.Part("bridge") = store.Part{Role: "bridge", State: store.Done}
		a.Parts = a.Parts[1:]
		return tx.PutAttachment(a)
	})
	m := get()
	if _, ok := m["pod"]; ok {
		t.Error("a known field came back")
	}
	if fmt.Sprint(m["color"]) != "map[r:1]" {
		t.Errorf("color %v", m["color"])
	}
	raw(t, path, func(tx *bolt.Tx) error {
		if v := tx.Bucket([]byte("attachments")).Get(k); !bytes.Contains(v, []byte(`"cookie":12345678901234567890`)) {
			t.Errorf("record %s", v)
		}
		return nil
	})
	parts, _ := m["parts"].([]any)
	if len(parts) != 1 {
		t.Fatalf("parts %v", m["parts"])
	}
	part, _ := parts[0].(map[string]any)
	if part["role"] != "bridge" || part["state"] != "done" || fmt.Sprint(part["trunk"]) != "[1]" || part["zone"] != nil {
		t.Errorf("part %v", part)
	}
}

func TestSetAside(t *testing.T) {
	o, path := filled(t, 2)
	s := store.New(o)
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	aside, err := s.SetAside(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(aside); string(b) != "garbage" || filepath.Dir(aside) != filepath.Dir(path) {
		t.Errorf("%s: %q, %v", aside, b, err)
	}
	if _, err := s.SetAside(t.Context()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	checkSound(t, s, 0)
	update(t, s, func(tx *store.Tx) error { return attach(tx, "a", 1) })
	if second, err := s.SetAside(t.Context()); err != nil || second == aside {
		t.Errorf("second: %q, %v", second, err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetAside(t.Context()); err != nil {
		t.Errorf("symbolic link: %v", err)
	}
	update(t, s, func(tx *store.Tx) error { return attach(tx, "a", 1) })
}
