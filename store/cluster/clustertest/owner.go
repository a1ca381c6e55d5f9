package clustertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// refused checks that a node is refused because another machine has its record, and that the error has both addresses.
func refused(t *testing.T, what string, err error, addresses ...string) {
	t.Helper()
	if !errors.Is(err, cluster.ErrConflict) {
		t.Fatalf("%s: %v", what, err)
	}
	for _, a := range addresses {
		if !strings.Contains(err.Error(), a) {
			t.Errorf("%s: %v does not have %s", what, err, a)
		}
	}
}

// gets publishes a node, which must get the pod networks of a record.
func gets(t *testing.T, what string, r cluster.Registry, want, has cluster.Node) cluster.Node {
	t.Helper()
	got, err := r.Acquire(t.Context(), want)
	if err != nil || !slices.Equal(got.PodCIDRs, has.PodCIDRs) || got.PublicIP != want.PublicIP {
		t.Fatalf("%s: %+v, %v; there was %+v", what, got, err, has)
	}
	return got
}

// oneName: of two machines with one name, the second is refused. Where records have no names it is another node.
func oneName(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	before := w.Writes(t)
	second := w.start(t, w.machine(nodeName(1)).reinstalled())
	two, err := second.Acquire(t.Context(), at(1, 99))
	if w.Anonymous {
		if err != nil || slices.Equal(two.PodCIDRs, one.PodCIDRs) {
			t.Errorf("another node: %+v, %v; the first one has %v", two, err, one.PodCIDRs)
		}
		return
	}
	refused(t, "a second machine", err, "192.0.2.1 ", "192.0.2.99 ", "host-of-node-1", nodeName(1))
	refused(t, "its removal of the record", second.Release(t.Context()))
	if after := w.Writes(t); after != before {
		t.Errorf("that wrote: %s, before %s", after, before)
	}
	// When the first one leaves, the second gets the name.
	if err := r.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Acquire(t.Context(), at(1, 99)); err != nil {
		t.Fatalf("when the first one is gone: %v", err)
	}
}

// clone: a clone that starts after its original has stopped gets its record. The original is refused then.
func clone(t *testing.T, w *World) {
	_, one := w.join(t, 1, node(1))
	m := w.machine(nodeName(1))
	for _, boot := range []string{"boot-of-clone", "boot-1"} {
		c := m.clone(boot)
		r := w.start(t, c)
		gets(t, "the clone", r, at(1, 99), one)
		for range 2 {
			_, err := w.start(t, m).Acquire(t.Context(), node(1))
			refused(t, "the original", err, "192.0.2.1 ", "192.0.2.99 ")
		}
		gets(t, "the clone after a reboot, with another address", w.start(t, c.boot("boot-3")), at(1, 98), one)
		m = c // and now a clone of the clone
		m.boot("boot-1")
		one = gets(t, "the clone", w.start(t, m), node(1), one)
	}
}

// runningClone: the original keeps its record if its agent runs, and the clone is refused from then on.
func runningClone(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	m := w.machine(nodeName(1))
	for _, boot := range []string{"boot-of-clone", "boot-1"} {
		c := m.clone(boot)
		other := w.start(t, c)
		gets(t, "the clone for a moment", other, at(1, 99), one)
		one = gets(t, "the original", r, node(1), one)
		before := w.Writes(t)
		for what, r := range map[string]cluster.Registry{"the clone": other, "the clone's next agent": w.start(t, c), "the clone after a reboot": w.start(t, c.boot("boot-2"))} {
			_, err := r.Acquire(t.Context(), at(1, 99))
			refused(t, what, err, "192.0.2.1 ", "192.0.2.99 ")
		}
		gets(t, "the original again", r, node(1), one)
		gets(t, "its next agent", w.start(t, m), node(1), one)
		if after := w.Writes(t); after != before {
			t.Errorf("refusals wrote: %s, before %s", after, before)
		}
	}
	// A machine without state has the same address, as behind a router that translates addresses.
	other := w.start(t, m.reinstalled())
	gets(t, "a new machine for a moment", other, node(1), one)
	one = gets(t, "the original beside a new machine", r, node(1), one)
	if !w.Anonymous {
		_, err := other.Acquire(t.Context(), node(1))
		refused(t, "a new machine", err)
	}
	gets(t, "the original at last", r, node(1), one)
}

// clonesAtOnce: of two clones that start together, one gets the record.
func clonesAtOnce(t *testing.T, w *World) {
	_, one := w.join(t, 1, node(1))
	m := w.machine(nodeName(1))
	for round := range 20 {
		var all sync.WaitGroup
		var errs [2]error
		var got [2]cluster.Node
		clones := [2]*Machine{m.clone("boot-1"), m.clone("boot-1")}
		for i, c := range clones {
			r := w.start(t, c)
			all.Go(func() { got[i], errs[i] = r.Acquire(t.Context(), at(1, 100+2*round+i)) })
		}
		all.Wait()
		winner := slices.Index(errs[:], nil)
		if winner < 0 || errs[1-winner] == nil {
			t.Fatalf("round %d: %v", round, errs)
		}
		refused(t, "the other one", errs[1-winner])
		if !slices.Equal(got[winner].PodCIDRs, one.PodCIDRs) {
			t.Fatalf("round %d: %+v", round, got[winner])
		}
		m = clones[winner]
	}
}

// moved: a node keeps its record when its address changes, while its agent runs and while it does not.
func moved(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	m := w.machine(nodeName(1))
	one = gets(t, "while the agent runs", r, at(1, 21), one)
	one = gets(t, "a restarted agent", w.start(t, m), at(1, 22), one)
	one = gets(t, "after a reboot", w.start(t, m.boot("boot-2")), at(1, 23), one)
	seen := watch(t, r)
	seen.until("one record", has(one))
	// Another node gets its former address, and not its record.
	_, two := w.join(t, 2, at(2, 22))
	if slices.Equal(two.PodCIDRs, one.PodCIDRs) {
		t.Errorf("%+v has the network of %+v", two, one)
	}
	seen.until("both", has(one, two))
}

// reinstalled: a machine that lost its state keeps its record if it has the same address.
func reinstalled(t *testing.T, w *World) {
	_, one := w.join(t, 1, node(1))
	n := w.machine(nodeName(1)).reinstalled()
	gets(t, "with the same address", w.start(t, n), node(1), one)
	gets(t, "with another address then", w.start(t, n), at(1, 31), one)
}

// unsigned: a record without an author is this node's, and gets one.
func unsigned(t *testing.T, w *World) {
	_, one := w.join(t, 1, node(1))
	plain := one
	plain.Author = cluster.Author{}
	for _, r := range []cluster.Registry{w.start(t, w.machine(nodeName(1))), w.start(t, w.machine(nodeName(1)).reinstalled())} {
		w.Alter(t, plain)
		if got := gets(t, "without an author", r, node(1), one); got.Author == (cluster.Author{}) {
			t.Errorf("it has no author: %+v", got)
		}
	}
	gets(t, "the last writer with another address", w.start(t, w.machine(nodeName(1)).reinstalled()), node(1), one)
}

// killed: an agent is killed before and after each write of its state. The next one has its record, whatever its address.
func killed(t *testing.T, w *World) {
	_, one := w.join(t, 1, node(1))
	m := w.machine(nodeName(1))
	host := 30
	for kill := 1; kill <= 2; kill++ {
		for _, after := range []bool{false, true} {
			for _, boot := range []string{m.o.Boot, fmt.Sprintf("boot-%d-%t", kill, after)} {
				host++
				m.saves, m.killAt, m.after = 0, kill, after
				if _, err, dead := acquireOrDie(t.Context(), w.start(t, m), at(1, host)); !dead {
					t.Fatalf("kill %d, after %t: %v", kill, after, err)
				}
				m.killAt = 0
				host++
				one = gets(t, fmt.Sprintf("killed at %d, after %t, boot %s", kill, after, boot), w.start(t, m.boot(boot)), at(1, host), one)
			}
		}
	}
	// The registry executes the write of a killed agent after the next agent was killed, too.
	m.saves, m.killAt, m.after = 0, 1, true
	for range 2 {
		m.saves = 0
		host++
		if _, err, dead := acquireOrDie(t.Context(), w.start(t, m), at(1, host)); !dead {
			t.Fatalf("not killed: %v", err)
		}
	}
	m.killAt = 0
	late := one
	late.Author = m.kept.Pending[0]
	w.Alter(t, late)
	host++
	one = gets(t, "after a late write", w.start(t, m), at(1, host), one)
	// The first write of a new node.
	first := NewMachine(nodeName(2))
	first.killAt, first.after = 2, false
	if w.Assign != nil {
		w.Assign(t, nodeName(2), prefixes(node(2), 2))
	}
	if _, err, dead := acquireOrDie(t.Context(), w.start(t, first), node(2)); !dead {
		t.Fatalf("not killed: %v", err)
	}
	first.killAt = 0
	two, err := w.start(t, first).Acquire(t.Context(), at(2, host+1))
	if err != nil {
		t.Fatal(err)
	}
	watch(t, w.start(t, first)).until("one record each", has(one, two))
}

// restored: the registry has an older record of this node, because it was restored.
func restored(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	later := gets(t, "moved", r, at(1, 41), one)
	for what, r := range map[string]cluster.Registry{"the running agent": r, "a new one": w.start(t, w.machine(nodeName(1)))} {
		w.Alter(t, one)
		gets(t, what, r, at(1, 41), later)
	}
}

// counted: a record with the highest count that is valid, which no agent reaches, does not keep its node from the others.
func counted(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	const most = 1 << 52
	for _, r := range []cluster.Registry{r, w.start(t, w.machine(nodeName(1)))} {
		one.Author.ID, one.Author.Count, one.Author.First = "x", most, most
		w.Alter(t, one)
		one = gets(t, "beside the highest count", r, at(1, 51), one)
		if err := one.Check(); err != nil {
			t.Errorf("%+v: %v", one, err)
		}
		watch(t, r).until("its record", has(one))
	}
}
