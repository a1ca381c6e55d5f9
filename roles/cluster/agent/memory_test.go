package agent

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// TestMachine: agents that start at the same time have the same identity for cluster-wide ranges, and none loses
// what another one saves.
func TestMachine(t *testing.T) {
	d := t.TempDir()
	for _, dir := range []string{"run", "state"} {
		if err := os.Mkdir(filepath.Join(d, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	host := func() *roles.Host {
		return &roles.Host{Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Store: store.New(store.Options{
			RunDir: filepath.Join(d, "run"), StateDir: filepath.Join(d, "state"), BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute,
		})}
	}
	machines := make([]string, 8)
	var all sync.WaitGroup
	for i := range machines {
		all.Go(func() {
			h := host()
			machines[i] = newKeeper(t.Context(), h, &registryClient{node: "a"}, &settings{}, nil).Machine
			memory{h}.save(t.Context(), func(r *remembered) { r.PodCIDRs = append(r.PodCIDRs, netip.Prefix{}) })
		})
	}
	all.Wait()
	got := memory{host()}.load(t.Context())
	if len(slices.Compact(machines)) != 1 || machines[0] == "" || got.Machine != machines[0] || len(got.PodCIDRs) != len(machines) {
		t.Errorf("%q, %+v", machines, got)
	}

	// After a cleanup the blocks of ranges are still this machine's.
	if err := (memory{host()}).forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := newKeeper(t.Context(), host(), &registryClient{node: "a"}, &settings{}, nil).Machine; again != machines[0] {
		t.Errorf("after a cleanup the machine is %q, it was %q", again, machines[0])
	}
	if left := (memory{host()}).load(t.Context()); left.PodCIDRs != nil {
		t.Errorf("cleanup left %+v", left)
	}
}
