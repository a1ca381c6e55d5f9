package clustertest

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// Suite runs every scenario in a separate World. conf is the network's
// configuration, for a registry that holds it.
func Suite(t *testing.T, world func(t *testing.T, conf string) *World) {
	for _, s := range []struct {
		name string
		conf string
		run  func(t *testing.T, w *World)
		// allocates means that the scenario is only for registries that assign subnets.
		allocates bool
	}{
		{"acquire", network, acquire, false},
		{"dual stack", dual, dualStack, false},
		{"not assigned", network, notAssigned, false},
		{"repair", network, repair, false},
		{"peers", network, peers, false},
		{"slow consumer", network, slowConsumer, false},
		{"down", network, down, false},
		{"down at start", network, downAtStart, false},
		{"hostile records", apart, hostile, false},
		{"release", network, release, false},
		{"end", network, end, false},
		{"ranges", network, ranges, false},
		{"watched collection", network, watched, false},
		{"one name", network, oneName, false},
		{"clone", network, clone, false},
		{"clone of a running node", network, runningClone, false},
		{"clones at once", network, clonesAtOnce, false},
		{"address changed", network, moved, false},
		{"reinstalled", network, reinstalled, false},
		{"without an author", network, unsigned, false},
		{"killed", network, killed, false},
		{"restored", network, restored, false},
		{"highest count", network, counted, false},
		{"conflict", network, conflict, true},
		{"full", tiny, full, true},
		{"at once", network, atOnce, true},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := world(t, s.conf)
			if s.allocates && w.Assign != nil {
				return // another program assigns them
			}
			s.run(t, w)
		})
	}
}

// acquire: the stored node is returned, and written only once, also after a restart.
func acquire(t *testing.T, w *World) {
	r, got := w.join(t, 1, node(1))
	want := node(1)
	want.Name, want.PodCIDRs = got.Name, got.PodCIDRs
	if !same(&got, &want) || len(got.PodCIDRs) != 1 || !netip.MustParsePrefix("10.244.0.0/16").Contains(got.PodCIDRs[0].Addr()) {
		t.Fatalf("stored is %+v", got)
	}
	before := w.Writes(t)
	again := func(r cluster.Registry, want cluster.Node) {
		t.Helper()
		if stored, err := r.Acquire(t.Context(), want); err != nil || !same(&stored, &got) {
			t.Fatalf("acquired again: %+v, %v, not %+v", stored, err, got)
		}
	}
	again(r, node(1))
	again(r, got)
	next := w.open(t, nodeName(1))
	defer func() { _ = next.Close() }()
	again(next, node(1))
	if after := w.Writes(t); after != before {
		t.Errorf("acquiring an existing record wrote: %s, before %s", after, before)
	}
	// A changed node is written.
	changed := got
	changed.BackendData = data(99)
	if stored, err := next.Acquire(t.Context(), changed); err != nil || !same(&stored, &changed) {
		t.Fatalf("changed: %+v, %v", stored, err)
	}
	watch(t, r).until("the change", has(changed))
}

func dualStack(t *testing.T, w *World) {
	r, got := w.join(t, 1, dualNode(1))
	if len(got.PodCIDRs) != 2 || !got.PodCIDRs[0].Addr().Is4() || got.PodCIDRs[1].Addr().Is4() {
		t.Fatalf("pod networks %v", got.PodCIDRs)
	}
	_, other := w.join(t, 2, dualNode(2))
	watch(t, r).until("both", has(got, other))
	before := w.Writes(t)
	if stored, err := r.Acquire(t.Context(), dualNode(1)); err != nil || !same(&stored, &got) || w.Writes(t) != before {
		t.Fatalf("again: %+v, %v", stored, err)
	}
}

// notAssigned: where another program assigns the pod networks, the node waits for it.
func notAssigned(t *testing.T, w *World) {
	if w.Assign == nil {
		return
	}
	r := w.open(t, nodeName(1))
	defer func() { _ = r.Close() }()
	if _, err := r.Acquire(t.Context(), node(1)); !errors.Is(err, cluster.ErrNotAssigned) {
		t.Fatalf("acquired without an assignment: %v", err)
	}
	p := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	w.Assign(t, nodeName(1), p)
	if got, err := r.Acquire(t.Context(), node(1)); err != nil || !slices.Equal(got.PodCIDRs, p) {
		t.Fatalf("%+v, %v", got, err)
	}
}

// repair: a record that was changed or removed is noticed and published again.
func repair(t *testing.T, w *World) {
	r, got := w.join(t, 1, node(1))
	other, _ := w.join(t, 2, node(2))
	seen := watch(t, other)
	without := func(s *cluster.Snapshot) bool {
		return !slices.ContainsFunc(s.Nodes, func(n *cluster.Node) bool { return same(n, &got) })
	}
	with := func(s *cluster.Snapshot) bool { return !without(s) && len(s.Nodes) == 2 }
	seen.until("both", with)
	altered := got
	altered.BackendData = data(77)
	for what, harm := range map[string]func(){
		"altered": func() { w.Alter(t, altered) },
		"removed": func() { w.Remove(t, got) },
	} {
		harm()
		seen.until("it "+what, without)
		if back, err := r.Acquire(t.Context(), got); err != nil || !same(&back, &got) {
			t.Fatalf("%s, acquired again: %+v, %v", what, back, err)
		}
		seen.until("it again after it was "+what, with)
	}
}

// peers: the first snapshot is complete, and later ones have the nodes that join, change and leave.
func peers(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	second, two := w.join(t, 2, node(2))
	third, three := w.join(t, 3, node(3))
	seen := watch(t, r)
	if u := seen.next(); u.Snapshot == nil || !has(one, two, three)(u.Snapshot) {
		t.Fatalf("the first update is not a complete snapshot: %v, %s", u.Err, describe(u.Snapshot))
	}
	_, four := w.join(t, 4, node(4))
	seen.until("a fourth node", has(one, two, three, four))
	want := node(2)
	want.PodCIDRs, want.PublicIP, want.BackendData = two.PodCIDRs, netip.MustParseAddr("192.0.2.200"), data(200)
	moved, err := second.Acquire(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	seen.until("the second one moved", has(one, moved, three, four))
	if err := third.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen.until("the third one gone", has(one, moved, four))
	// A watch that begins later reports the same.
	if u := watch(t, second).next(); u.Snapshot == nil || !has(one, moved, four)(u.Snapshot) {
		t.Fatalf("the first update of a later watch: %v, %s", u.Err, describe(u.Snapshot))
	}
	seen.end()
}

// slowConsumer: a slow consumer gets the newest snapshot.
func slowConsumer(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	other, two := w.join(t, 2, node(2))
	seen := watch(t, r)
	fast := watch(t, other)
	seen.until("both", has(one, two))
	for i := range 30 {
		want := two
		want.BackendData = data(100 + i)
		var err error
		if two, err = other.Acquire(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		// The registry has reported the change to another watch.
		fast.until("the change", has(one, two))
	}
	for n := 1; ; n++ {
		if has(one, two)(seen.until("anything", func(*cluster.Snapshot) bool { return true })) {
			if n > 3 {
				t.Errorf("the newest snapshot came as the %d. of 30", n)
			}
			return
		}
	}
}

// down: a registry that does not answer is reported, the last snapshot stays, and
// later changes are seen.
func down(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	other, two := w.join(t, 2, node(2))
	seen := watch(t, r)
	seen.until("both", has(one, two))
	up := w.Down(t)
	if err := seen.fails(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("reported as %v", err)
	}
	if _, err := other.Acquire(t.Context(), node(2)); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("acquired while it is down: %v", err)
	}
	up()
	seen.until("both again", has(one, two))
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen.until("the second one gone", has(one))
	again, err := other.Acquire(t.Context(), two)
	if err != nil || !same(&again, &two) {
		t.Fatalf("%+v, %v", again, err)
	}
	seen.until("it again", has(one, two))
}

// downAtStart: a node that starts while the registry is down waits for it.
func downAtStart(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	up := w.Down(t)
	seen := watch(t, r)
	if u := seen.next(); !errors.Is(u.Err, cluster.ErrUnavailable) {
		t.Errorf("first update: %v, %s", u.Err, describe(u.Snapshot))
	}
	up()
	seen.until("the node", has(one))
	seen.end()
}

// hostile: a record that cannot be used is reported and does not affect other nodes.
func hostile(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	seen := watch(t, r)
	seen.until("the node", has(one))
	names := w.Hostile(t)
	complete := func(s *cluster.Snapshot) bool {
		return has(one)(s) && !slices.ContainsFunc(names, func(name string) bool { return s.Faults[name] == nil })
	}
	s := seen.until("faults of "+strings.Join(names, ", "), complete)
	for _, name := range names {
		if text := s.Faults[name].Error(); text == "" || len(text) > 1000 {
			t.Errorf("%s: %d bytes of text", name, len(text))
		}
	}
	// Hostile records do not keep other nodes from joining.
	_, two := w.join(t, 2, node(2))
	seen.until("the second node", has(one, two))
	if u := watch(t, r).next(); u.Snapshot == nil || !has(one, two)(u.Snapshot) || len(u.Snapshot.Faults) < len(names) {
		t.Fatalf("first update of a later watch: %v, %s", u.Err, describe(u.Snapshot))
	}
}

func release(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	other, two := w.join(t, 2, node(2))
	seen := watch(t, other)
	seen.until("both", has(one, two))
	for range 2 {
		if err := r.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen.until("the second one alone", has(two))
	// The node gets the requested subnets again.
	back, err := r.Acquire(t.Context(), one)
	if err != nil || !same(&back, &one) {
		t.Fatalf("%+v, %v", back, err)
	}
	seen.until("both again", has(one, two))
	if err := r.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// end: a watch ends with its context, whether the registry answers or not, and leaves
// no goroutine.
func end(t *testing.T, w *World) {
	r, one := w.join(t, 1, node(1))
	seen := watch(t, r)
	seen.until("the node", has(one))
	seen.end()
	// This watch's updates are not consumed.
	idle := watch(t, r)
	idle.end()
	up := w.Down(t)
	lost := watch(t, r)
	_ = lost.fails()
	lost.end()
	up()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	noLeaks(t)
}

// conflict: a request for another node's subnet is refused, and the error names the node.
func conflict(t *testing.T, w *World) {
	_, one := w.join(t, 1, node(1))
	before := w.Writes(t)
	r := w.open(t, nodeName(2))
	defer func() { _ = r.Close() }()
	want := node(2)
	want.PodCIDRs = one.PodCIDRs
	if _, err := r.Acquire(t.Context(), want); !errors.Is(err, cluster.ErrConflict) || !strings.Contains(err.Error(), one.Name) {
		t.Fatalf("request for another node's subnet: %v", err)
	}
	want.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.250.1.0/24")}
	if _, err := r.Acquire(t.Context(), want); !errors.Is(err, cluster.ErrInvalid) {
		t.Fatalf("request for a subnet of another network: %v", err)
	}
	if after := w.Writes(t); after != before {
		t.Errorf("that wrote: %s, before %s", after, before)
	}
	want.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.255.0/24")}
	if two, err := r.Acquire(t.Context(), want); err != nil || !slices.Equal(two.PodCIDRs, want.PodCIDRs) {
		t.Fatalf("request for a free subnet: %+v, %v", two, err)
	}
}

// full: a network of three subnets has no fourth until one is released.
func full(t *testing.T, w *World) {
	var held []netip.Prefix
	var last cluster.Registry
	for i := 1; i <= 3; i++ {
		r, n := w.join(t, i, node(i))
		if slices.Contains(held, n.PodCIDRs[0]) {
			t.Fatalf("%v was given twice", n.PodCIDRs)
		}
		held, last = append(held, n.PodCIDRs[0]), r
	}
	r := w.open(t, nodeName(4))
	defer func() { _ = r.Close() }()
	if _, err := r.Acquire(t.Context(), node(4)); !errors.Is(err, cluster.ErrFull) {
		t.Fatalf("a fourth: %v", err)
	}
	if err := last.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Acquire(t.Context(), node(4)); err != nil || n.PodCIDRs[0] != held[2] {
		t.Fatalf("after one was given back: %+v, %v", n, err)
	}
}

// atOnce: nodes that start together get different subnets.
func atOnce(t *testing.T, w *World) {
	const count = 16
	nodes := make([]cluster.Node, count)
	var all sync.WaitGroup
	for i := range nodes {
		r := w.open(t, nodeName(i+1))
		t.Cleanup(func() { _ = r.Close() })
		all.Go(func() {
			var err error
			nodes[i], err = r.Acquire(t.Context(), node(i+1))
			if err != nil {
				t.Errorf("acquire %s: %v", nodeName(i+1), err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	held := map[netip.Prefix]string{}
	for _, n := range nodes {
		if other, ok := held[n.PodCIDRs[0]]; ok {
			t.Errorf("%s and %s have %s", n.Name, other, n.PodCIDRs[0])
		}
		held[n.PodCIDRs[0]] = n.Name
	}
	r := w.open(t, nodeName(1))
	t.Cleanup(func() { _ = r.Close() })
	watch(t, r).until("all", has(nodes...))
}
