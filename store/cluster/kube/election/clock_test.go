package election_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
	"github.com/cnibox/cnibox/test/await"
)

// wire is a registry that a candidate can lose.
type wire struct {
	rest.Objects
	cut atomic.Bool
}

func (w *wire) Get(ctx context.Context, path string, v any) error {
	if w.cut.Load() {
		return cluster.ErrUnavailable
	}
	return w.Objects.Get(ctx, path, v)
}

func (w *wire) Patch(ctx context.Context, path, kind string, patch, v any) error {
	if w.cut.Load() {
		return cluster.ErrUnavailable
	}
	return w.Objects.Patch(ctx, path, kind, patch, v)
}

// TestClock: the machine's clock jumps, and then the leader loses the registry. The other
// process leads only after the former one's term. The variable CNIBOX_SET_CLOCK permits the test to set the clock: it is for a virtual machine.
func TestClock(t *testing.T) {
	if os.Getenv("CNIBOX_SET_CLOCK") == "" {
		t.Skip("CNIBOX_SET_CLOCK is not set: make test-vm runs this test")
	}
	path := t.TempDir()
	begin := time.Now()
	if err := os.WriteFile(filepath.Join(path, "config.json"), []byte(`{"Network":"10.0.0.0/8"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	terms := make([]atomic.Pointer[election.Term], 2)
	var wires [2]wire
	for i, name := range []string{"a", "b"} {
		r, err := dir.Open(dir.Options{Dir: path, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		wires[i].Objects = objects.New(r)
		o := election.Options{
			Client: &wires[i], Namespace: "default", Name: "clock", Identity: name, Log: slog.New(slog.DiscardHandler),
			Duration: 3 * time.Second, Deadline: 2 * time.Second, Retry: 100 * time.Millisecond, Seen: func(string, error) {},
		}
		running.Go(func() {
			_ = election.Run(ctx, o, func(ctx context.Context, term *election.Term) bool {
				terms[i].Store(term)
				<-ctx.Done()
				terms[i].CompareAndSwap(term, nil)
				return false
			})
		})
	}
	leads := func(i int) bool { term := terms[i].Load(); return term != nil && term.Valid() }
	jump := func(by time.Duration) {
		t.Helper()
		ts := unix.NsecToTimespec(begin.Round(0).Add(time.Since(begin) + by).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Fatal(err)
		}
	}
	defer jump(0)
	leader := func(other int) (at int) {
		t.Helper()
		await.Until(t, func() bool {
			at = slices.IndexFunc([]int{0, 1}, func(i int) bool { return i != other && leads(i) })
			return at >= 0
		}, func() string { return "none leads" })
		return at
	}
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0, -24 * time.Hour, 365 * 24 * time.Hour} {
		at := leader(-1)
		jump(by)
		wires[at].cut.Store(true)
		leader(at)
		if leads(at) {
			t.Errorf("both lead after a jump by %v", by)
		}
		wires[at].cut.Store(false)
	}
}
