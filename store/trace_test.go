package store_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// tracedCall is a call of about 1 KB.
func tracedCall(n int) *store.TracedCall {
	return &store.TracedCall{
		Time: time.Unix(int64(n), 0).UTC(), Role: "bridge", Verb: "DEL", Network: "net", ContainerID: fmt.Sprint("c", n), IfName: "eth0",
		Stdin: strings.Repeat("x", 800), Took: time.Millisecond,
	}
}

func traced(t testing.TB, s *store.Store) ([]*store.TracedCall, int) {
	t.Helper()
	calls, damaged, err := s.Traced()
	if err != nil {
		t.Fatal(err)
	}
	return calls, damaged
}

// TestTraceRing: several processes append at the same time; the last calls remain, and the files stay small.
func TestTraceRing(t *testing.T) {
	first, counters := countable(t)
	const processes, each, limit = 8, 100, 100 << 10
	var all sync.WaitGroup
	for p := range processes {
		s := store.New(store.Options{RunDir: first.RunDir(), BootID: bootA})
		all.Go(func() {
			for n := range each {
				if err := s.Trace(tracedCall(p*each+n), limit); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	calls, damaged := traced(t, first)
	if damaged > 0 || len(calls) < limit/1024 || len(calls) > 2*limit/900+processes {
		t.Errorf("%d calls, %d damaged lines", len(calls), damaged)
	}
	latest := map[int]int{}
	for _, c := range calls {
		n := int(c.Time.Unix())
		if last, seen := latest[n/each]; seen && n != last+1 {
			t.Errorf("process %d: call %d follows call %d", n/each, n, last)
		}
		latest[n/each] = n
	}
	for p, last := range latest {
		if last != p*each+each-1 {
			t.Errorf("process %d: the last call is %d", p, last)
		}
	}
	for _, name := range []string{"trace", "trace.old"} {
		st, err := os.Stat(filepath.Join(filepath.Dir(counters), name))
		if err != nil || st.Mode() != 0o600 || st.Size() > limit+processes*1100 {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
}

// TestTraceHostile: damaged lines are counted and skipped, and a file that is a link or whose old one is in
// the way fails the trace and nothing else.
func TestTraceHostile(t *testing.T) {
	none := newStore(t)
	if err := none.Trace(tracedCall(0), 1024); err != nil {
		t.Error(err)
	}
	if calls, _ := traced(t, none); len(calls) > 0 {
		t.Error("a DEL made the directory")
	}
	add := tracedCall(1)
	add.Verb = "ADD"
	if err := none.Trace(add, 1024); err != nil {
		t.Error(err)
	}
	if calls, _ := traced(t, none); len(calls) != 1 || *calls[0] != *add {
		t.Errorf("the first ADD: %+v", calls)
	}

	s, counters := countable(t)
	path := filepath.Join(filepath.Dir(counters), "trace")
	for _, in := range [][]byte{nil, []byte("\n"), bytes.Repeat([]byte{0xff, 0}, 5000), []byte("{}\n[]\n{\"time\":5}\nnull"), []byte(`{"role":"x","tookNs":1e99}`)} {
		if err := os.WriteFile(path, append(in, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Trace(tracedCall(7), 1<<20); err != nil {
			t.Error(err)
		}
		calls, damaged := traced(t, s)
		if len(calls) == 0 || calls[len(calls)-1].ContainerID != "c7" || damaged == 0 {
			t.Errorf("after %.20q: %d calls, %d damaged lines", in, len(calls), damaged)
		}
	}
	if err := os.Mkdir(path+".old", 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Trace(tracedCall(8), 1); err == nil {
			t.Error("a file that cannot be renamed was written to")
		}
	}
	if err := os.Remove(path + ".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	if err := s.Trace(tracedCall(9), 1<<20); err == nil {
		t.Error("a symbolic link was followed by a writer")
	}
	if _, _, err := s.Traced(); err == nil {
		t.Error("a symbolic link was followed by a reader")
	}
}

// TestEnded: a removed attachment is in the history with its addresses; a failed ADD and a transaction that is
// rolled back are not.
func TestEnded(t *testing.T) {
	s, _ := countable(t)
	address := netip.MustParsePrefix("10.2.3.4/24")
	put := func(id string, state store.State, deleted bool, failed error) {
		t.Helper()
		a := &store.Attachment{
			Key: store.Key{Network: "net", ContainerID: id, IfName: "eth0"}, Pod: "default/" + id, Addresses: []netip.Prefix{address},
			Parts: []store.Part{{Role: "bridge", State: state}}, Created: time.Unix(100, 0).UTC(),
		}
		update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
		if err := s.Update(t.Context(), func(tx *store.Tx) error {
			if deleted {
				if err := tx.DeleteAttachment(a.Key); err != nil {
					return err
				}
			}
			return failed
		}); (err == nil) != (failed == nil) {
			t.Error(err)
		}
	}
	put("ended", store.Done, true, nil)
	put("failed", store.Pending, true, nil)
	put("kept", store.Done, true, os.ErrInvalid)
	put("living", store.Done, false, nil)
	ended, damaged, err := s.Ended()
	if err != nil || damaged > 0 || len(ended) != 1 {
		t.Fatalf("%+v, %d damaged, %v", ended, damaged, err)
	}
	e := ended[0]
	if e.ContainerID != "ended" || e.Pod != "default/ended" || e.Addresses[0] != address || !e.Since.Equal(time.Unix(100, 0)) || time.Since(e.Until) > time.Hour {
		t.Errorf("%+v", e)
	}
}

// BenchmarkTrace appends a call of 1 KB as a plugin does. A transaction on node.db is BenchmarkUpdate.
func BenchmarkTrace(b *testing.B) {
	s, _ := countable(b)
	c := tracedCall(1)
	for b.Loop() {
		if err := s.Trace(c, 2<<20); err != nil {
			b.Fatal(err)
		}
	}
}
