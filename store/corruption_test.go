package store_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store"
)

// corruptions is how many corruptions TestCorruptionSweep tries. CNIBOX_CORRUPTIONS
// gives another number: 5000 in a soak.
const corruptions = 400

// corrupt damages a file as a stray writer may: some bytes, a page's element count, a
// page in place of another one, zeros, up to 4000 bytes of garbage, or its end.
func corrupt(rnd *rand.Rand, b []byte) ([]byte, string) {
	b = bytes.Clone(b)
	pages := len(b) / 4096
	page, at := rnd.IntN(pages), rnd.IntN(len(b))
	switch rnd.IntN(6) {
	case 0:
		b[at] ^= byte(1 + rnd.IntN(255))
		return b, fmt.Sprintf("byte %d", at)
	case 1:
		b[page*4096+10], b[page*4096+11] = 0, 0
		return b, fmt.Sprintf("element count of page %d", page)
	case 2:
		from := rnd.IntN(pages)
		copy(b[page*4096:][:4096], bytes.Clone(b[from*4096:][:4096]))
		return b, fmt.Sprintf("page %d is a copy of page %d", page, from)
	case 3:
		clear(b[at:min(at+1+rnd.IntN(5000), len(b))])
		return b, fmt.Sprintf("zeros at %d", at)
	case 4:
		for i := at; i < min(at+1+rnd.IntN(4000), len(b)); i++ {
			b[i] = byte(rnd.Uint32())
		}
		return b, fmt.Sprintf("garbage at %d", at)
	}
	return b[:at], fmt.Sprintf("cut at %d", at)
}

// TestCorruptionSweep damages node.db at random places. Each time the file is either
// refused as damaged, also by a process that has it open, or has all its records, so
// that no address in use is given out and no link in use is deleted.
func TestCorruptionSweep(t *testing.T) {
	n := corruptions
	if s := os.Getenv("CNIBOX_CORRUPTIONS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	o, path := filled(t, 40)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(dumpOf(t, store.New(o)))
	if err := os.WriteFile(path, sound, 0o600); err != nil {
		t.Fatal(err)
	}
	open := store.New(o) // keeps the file open
	refused := 0
	for i := range n {
		b, what := corrupt(rand.New(rand.NewPCG(uint64(i), 7)), sound)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*store.Store{open, store.New(o)} {
			var dump *store.Dump
			err := s.Update(t.Context(), func(tx *store.Tx) error {
				d, err := tx.Export()
				if err != nil {
					return err
				}
				d.Info = store.Info{}
				dump = d
				p, err := tx.Pool(pool)
				if err != nil {
					return err
				}
				a, _, err := p.Next(netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.200"))
				if err != nil {
					return err
				}
				return errors.Join(p.Reserve(store.Lease{Address: a, Owner: key("net", "new")}), errRollBack)
			})
			if errors.Is(err, store.ErrDamaged) {
				refused++
				continue
			}
			if len(b) == 0 && errors.Is(err, errRollBack) {
				continue // an empty file is a new one; see Options.Fresh
			}
			if have, _ := json.MarshalIndent(dump, "", " "); string(have) != want || !errors.Is(err, errRollBack) {
				t.Fatalf("seed %d, %s: %v\nwant %s\nhave %s", i, what, err, want, have)
			}
		}
		if err := os.WriteFile(path, sound, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := open.View(t.Context(), func(*store.Tx) error { return nil }); err != nil {
			t.Fatalf("seed %d, after %s was mended: %v", i, what, err)
		}
	}
	t.Logf("%d of %d uses were refused", refused, 2*n)
}

var errRollBack = errors.New("roll back")

// TestKilledBeforeSeal checks that a file whose last commit is not sealed, as after a
// SIGKILL, is used and sealed.
func TestKilledBeforeSeal(t *testing.T) {
	o, path := filled(t, 40)
	s := store.New(o)
	update(t, s, func(tx *store.Tx) error { return attach(tx, "z", 99) })
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newest := 0
	if txid(whole[4096:]) > txid(whole) {
		newest = 1
	}
	clear(whole[newest*4096+80:][:24])
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	checkSound(t, store.New(o), 41)
	if b, err := os.ReadFile(path); err != nil || bytes.Equal(b[newest*4096+80:][:24], make([]byte, 24)) {
		t.Errorf("a reader did not seal the file: %v", err)
	}
}

func txid(meta []byte) byte { return meta[16+48] }

// TestDamageBehindTime checks that Check finds damage that kept the file's modification
// time, which a transaction does not look for.
func TestDamageBehindTime(t *testing.T) {
	o, path := filled(t, 40)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	s := store.New(o)
	if err := s.Check(t.Context(), readAll); err != nil {
		t.Fatal(err)
	}
	whole = bytes.ReplaceAll(whole, []byte(`"containerID":"f-7"`), []byte(`"containerID":"f-8"`))
	if err := errors.Join(os.WriteFile(path, whole, 0o600), unix.UtimesNano(path, []unix.Timespec{st.Atim, st.Mtim})); err != nil {
		t.Fatal(err)
	}
	if err := s.View(t.Context(), func(*store.Tx) error { return nil }); err != nil {
		t.Errorf("the modification time is not used: %v", err)
	}
	if err := s.Check(t.Context(), readAll); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Check: %v", err)
	}
}

// TestKeepCorruption checks the same for keep.db. Its newest meta page may be lost in a
// power cut, so a file without it is the one before the last commit.
func TestKeepCorruption(t *testing.T) {
	o := options(t)
	s := store.New(o)
	for i := range 60 {
		err := s.KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
			return tx.Mark("kind", fmt.Sprintf("mark %d", i), json.RawMessage(fmt.Sprintf(`{"n":%d,"text":"%0200d"}`, i, i)))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(o.StateDir, "keep.db")
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func(tx *store.KeepTx) error {
		for i := range 59 {
			v, ok, err := tx.Marked("kind", fmt.Sprintf("mark %d", i))
			if err != nil {
				return err
			}
			if want := fmt.Sprintf(`{"n":%d,"text":"%0200d"}`, i, i); !ok || string(v) != want {
				return fmt.Errorf("mark %d: %q", i, v)
			}
		}
		return nil
	}
	for i := range corruptions / 4 {
		b, what := corrupt(rand.New(rand.NewPCG(uint64(i), 8)), sound)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.KeepView(t.Context(), read); err != nil && !errors.Is(err, store.ErrDamaged) {
			t.Fatalf("seed %d, %s: %v", i, what, err)
		}
	}
}

// TestMendKeep damages one page of keep.db: it is refused, MendKeep keeps the records of
// the other pages, and the file is sound then.
func TestMendKeep(t *testing.T) {
	s := newStore(t)
	sticky(t, s, func(p *store.StickyPool) error {
		var errs []error
		for i := range 200 {
			errs = append(errs, p.Put(reservation(fmt.Sprintf("web-%03d", i), fmt.Sprintf("10.1.0.%d", i+1))))
		}
		return errors.Join(errs...)
	})
	err := s.KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
		return errors.Join(tx.Mark("kind", "name", json.RawMessage(`{"n":1}`)),
			tx.PutDelegation(&store.Delegation{Owner: key("net", "c1")}), tx.PutCloudSource(&store.CloudSource{Name: "cloud"}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.KeepCheck(t.Context(), (*store.KeepTx).Sound); err != nil {
		t.Fatalf("before: %v", err)
	}
	b, err := os.ReadFile(s.KeepPath())
	if err != nil {
		t.Fatal(err)
	}
	for at := bytes.Index(b, []byte("Iweb-100{")); at >= 0; { // in every page that ever had it
		page := at / 4096 * 4096
		clear(b[page+16 : page+4096])
		next := bytes.Index(b[page+4096:], []byte("Iweb-100{"))
		at = next
		if next >= 0 {
			at += page + 4096
		}
	}
	if err := os.WriteFile(s.KeepPath(), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepCheck(t.Context(), (*store.KeepTx).Sound); !errors.Is(err, store.ErrDamaged) {
		t.Fatalf("damaged: %v", err)
	}
	m, err := s.MendKeep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if was, err := os.ReadFile(m.Aside); err != nil || !bytes.Equal(was, b) {
		t.Errorf("%s is not the damaged file: %v", m.Aside, err)
	}
	if m.Kept < 100 || m.Kept >= 203 {
		t.Errorf("kept %d of 203, lost %d", m.Kept, m.Lost)
	}
	err = s.KeepCheck(t.Context(), func(tx *store.KeepTx) error {
		_, marked, err := tx.Marked("kind", "name")
		_, derr := tx.Delegation(key("net", "c1"))
		_, cerr := tx.CloudSource("cloud")
		if err := errors.Join(err, derr, cerr, tx.Sound()); err != nil || !marked {
			return fmt.Errorf("marked %v: %w", marked, err)
		}
		ids, err := tx.StickyPools("")
		if err != nil {
			return err
		}
		p, err := tx.Sticky(ids[0])
		if err != nil {
			return err
		}
		n := 0
		for r, err := range p.All() {
			at, err2 := p.ReservationAt(r.Addresses[0])
			if err := errors.Join(err, err2); err != nil || at.Identity != r.Identity {
				return fmt.Errorf("%s: %w", r.Identity, err)
			}
			n++
		}
		if n != m.Kept-3 {
			return fmt.Errorf("%d reservations of %d records", n, m.Kept)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestReplacedWhileOpen checks that a store that keeps its file open seals correctly after
// the file got another content with the same number of transactions.
func TestReplacedWhileOpen(t *testing.T) {
	o, path := filled(t, 40)
	base := contents(t, path)
	s := store.New(o)
	update(t, s, func(tx *store.Tx) error { return attach(tx, "z", 99) })
	overwrite(t, path, base)
	update(t, store.New(o), func(tx *store.Tx) error {
		for i := range 36 {
			if err := tx.DeleteAttachment(key("net", fmt.Sprintf("f-%d", i))); err != nil {
				return err
			}
		}
		return nil
	})
	update(t, s, func(tx *store.Tx) error { return attach(tx, "w", 200) })
	if err := store.New(o).Check(t.Context(), readAll); err != nil {
		t.Error(err)
	}
}

// TestMendNotRegular: MendKeep sets aside what has the path of keep.db and is no regular file, and an
// empty file.
func TestMendNotRegular(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/null", path) },
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"empty":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			mark := func(tx *store.KeepTx) error { return tx.Mark("kind", "name", json.RawMessage(`1`)) }
			if err := errors.Join(s.KeepUpdate(t.Context(), mark), os.Remove(s.KeepPath()), replace(s.KeepPath())); err != nil {
				t.Fatal(err)
			}
			was, err := os.Lstat(s.KeepPath())
			if err != nil {
				t.Fatal(err)
			}
			m, err := s.MendKeep(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if now, err := os.Lstat(m.Aside); err != nil || !os.SameFile(was, now) {
				t.Errorf("%s is not what was in place of keep.db: %v", m.Aside, err)
			}
			if err := errors.Join(s.KeepCheck(t.Context(), (*store.KeepTx).Sound), s.KeepUpdate(t.Context(), mark)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMendFails checks that a keep.db that cannot be mended stays in place, and stays damaged.
func TestMendFails(t *testing.T) {
	o := options(t)
	var fault error
	o.Probe = func(op string) error {
		if op == "keep commit" {
			return fault
		}
		return nil
	}
	s := store.New(o)
	err := s.KeepUpdate(t.Context(), func(tx *store.KeepTx) error {
		return tx.Mark("k", "a", json.RawMessage(`"`+strings.Repeat("x", 20000)+`"`))
	})
	if err != nil {
		t.Fatal(err)
	}
	b := contents(t, s.KeepPath())
	b[len(b)/2] ^= 1
	overwrite(t, s.KeepPath(), b)
	fault = errors.New("no space left")
	if m, err := s.MendKeep(t.Context()); err == nil {
		t.Errorf("mended: %+v", m)
	}
	fault = nil
	if err := s.KeepCheck(t.Context(), (*store.KeepTx).Sound); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("after the failure: %v", err)
	}
	if m, err := s.MendKeep(t.Context()); err != nil || m.Kept == 0 {
		t.Errorf("mended again: %+v, %v", m, err)
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
