package store_test

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// countable returns a store whose directory exists, and the path of its counters.
func countable(t testing.TB) (*store.Store, string) {
	t.Helper()
	s := newStore(t)
	update(t, s, func(*store.Tx) error { return nil })
	return s, filepath.Join(filepath.Dir(s.Path()), "calls")
}

// count counts a call. A call does not wait long for the lock, so on a busy machine it may be given up: then count tries again.
func count(t testing.TB, s *store.Store, role, verb string, code uint16, took time.Duration) {
	t.Helper()
	err := s.CountCall(t.Context(), role, verb, code, took)
	for errors.Is(err, store.ErrBusy) {
		err = s.CountCall(t.Context(), role, verb, code, took)
	}
	if err != nil {
		t.Error(err)
	}
}

func calls(t testing.TB, s *store.Store) []store.Calls {
	t.Helper()
	all, err := s.Calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b store.Calls) int { return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Code, b.Code)) })
	return all
}

// TestCalls: several processes count at the same time, and every call is counted.
func TestCalls(t *testing.T) {
	first, path := countable(t)
	const processes, each = 8, 50
	var all sync.WaitGroup
	for range processes {
		s := store.New(store.Options{RunDir: first.RunDir(), BootID: bootA})
		all.Go(func() {
			for range each {
				count(t, s, "bridge", "ADD", 0, 3*time.Millisecond)
				count(t, s, "azure-vnet-ipam", "STATUS", 65535, time.Minute)
			}
		})
	}
	all.Wait()
	got := calls(t, first)
	if len(got) != 2 {
		t.Fatalf("counted %+v", got)
	}
	a, b := got[0], got[1]
	if a.Role != "azure-vnet-ipam" || a.Verb != "STATUS" || a.Code != 65535 || a.Buckets[10] != processes*each || a.Sum != processes*each*time.Minute {
		t.Errorf("counted %+v", a)
	}
	if b.Role != "bridge" || b.Verb != "ADD" || b.Code != 0 || b.Buckets[1] != processes*each {
		t.Errorf("counted %+v", b)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 || st.Size() != 256 {
		t.Errorf("the file: %v %v", st, err)
	}
}

// TestCallsBounded: without a directory nothing is made; the file does not grow without end; and
// damage, an unusable file and a held lock fail no call for long.
func TestCallsBounded(t *testing.T) {
	none := newStore(t)
	count(t, none, "bridge", "ADD", 0, 0)
	if _, err := os.Stat(none.RunDir()); err == nil || len(calls(t, none)) != 0 {
		t.Error("counting made the directory")
	}
	s, path := countable(t)
	for i := range 300 {
		count(t, s, "role"+strconv.Itoa(i), "ADD", 0, 0)
	}
	if n := len(calls(t, s)); n != 256 {
		t.Errorf("%d slots, want 256", n)
	}
	if err := s.CountCall(t.Context(), "a-name-of-more-than-24-bytes", "ADD", 0, 0); err == nil {
		t.Error("a long name was counted")
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xff}, 200), 0o600); err != nil {
		t.Fatal(err)
	}
	count(t, s, "bridge", "DEL", 7, time.Second)
	if got := calls(t, s); len(got) != 2 || got[1].Role != "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" && got[0].Role != "bridge" {
		t.Errorf("of a damaged file: %+v", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	if err := s.CountCall(t.Context(), "bridge", "ADD", 0, 0); err == nil {
		t.Error("a symbolic link was followed")
	}
}

// BenchmarkCountCall counts a call as a plugin does, with a store that used its directory before.
func BenchmarkCountCall(b *testing.B) {
	s, _ := countable(b)
	for i := range 20 {
		count(b, s, "role"+strconv.Itoa(i), "ADD", 0, 0)
	}
	for b.Loop() {
		count(b, s, "role19", "ADD", 0, time.Millisecond)
	}
}
