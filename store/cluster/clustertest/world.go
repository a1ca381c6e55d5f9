// Package clustertest is the test suite that every registry passes with its real server.
package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/test/await"
)

// World is one registry without nodes, used by one test.
type World struct {
	// Open opens the registry for a node, as a restarted agent does. It creates the node if another
	// program does that in practice.
	Open func(tb testing.TB, name string, owner *cluster.Owner) cluster.Registry
	// Anonymous is true if records have no node's name, so that two nodes may have one name.
	Anonymous bool
	// Assign replaces a node's pod networks. It is nil if the registry assigns them.
	Assign func(tb testing.TB, name string, podCIDRs []netip.Prefix)
	// Writes returns a text that differs after every write to the records of nodes.
	Writes func(tb testing.TB) string
	// Alter changes the record that the node published as n.Name. Remove removes it.
	Alter  func(tb testing.TB, n cluster.Node)
	Remove func(tb testing.TB, n cluster.Node)
	// Hostile writes records that cannot be used, under different names. It returns
	// the names that must appear as faults.
	Hostile func(tb testing.TB) []string
	// Text writes a text of a collection as another program does, which may be no valid one.
	Text func(tb testing.TB, collection, name string, text []byte)
	// Down stops the registry from answering until up is called.
	Down func(tb testing.TB) (up func())

	mu       sync.Mutex
	machines map[string]*Machine
}

// network is the default configuration of a World.
const (
	network = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`
	// apart assigns no subnets that hostile records have.
	apart = `{"Network":"10.244.0.0/16","SubnetMin":"10.244.200.0","SubnetMax":"10.244.220.0","Backend":{"Type":"vxlan"}}`
	dual  = `{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan"}}`
	tiny  = `{"Network":"10.244.0.0/28","Backend":{"Type":"vxlan"}}`
)

// nodeName returns the name of the i-th node.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// node returns the i-th node without pod networks.
func node(i int) cluster.Node {
	return cluster.Node{
		Name: nodeName(i), PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
		BackendType: "vxlan", BackendData: data(i),
	}
}

func dualNode(i int) cluster.Node {
	n := node(i)
	n.PublicIPv6 = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i))
	n.BackendV6Data = data(i + 100)
	return n
}

func data(i int) json.RawMessage {
	return fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}`, i)
}

// join opens the registry for the i-th node and publishes want there.
func (w *World) join(tb testing.TB, i int, want cluster.Node) (cluster.Registry, cluster.Node) {
	tb.Helper()
	r := w.open(tb, nodeName(i))
	tb.Cleanup(func() { _ = r.Close() })
	if w.Assign != nil {
		w.Assign(tb, nodeName(i), prefixes(want, i))
	}
	got, err := r.Acquire(tb.Context(), want)
	if err != nil {
		tb.Fatalf("acquire %s: %v", want.Name, err)
	}
	return r, got
}

// prefixes returns the pod networks that are assigned to the i-th node.
func prefixes(want cluster.Node, i int) []netip.Prefix {
	p := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)}
	if want.PublicIPv6.IsValid() {
		p = append(p, netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", i)))
	}
	return p
}

// watcher collects the updates of a registry.
type watcher struct {
	tb      testing.TB
	updates chan cluster.Update
	done    chan error
	stop    context.CancelFunc
}

// Watch calls fn with the updates of a registry's Watch until that returns. An update with a snapshot and an error is two.
func Watch(ctx context.Context, watch func(context.Context, *cluster.Relay) error, fn func(cluster.Update)) error {
	relay, done := cluster.NewRelay(), make(chan error, 1)
	go func() { done <- watch(ctx, relay) }()
	for {
		select {
		case err := <-done:
			return err
		case <-relay.Changes():
		}
		u := relay.Take()
		if u.Snapshot != nil {
			fn(cluster.Update{Snapshot: u.Snapshot})
		}
		if u.Err != nil && ctx.Err() == nil {
			fn(cluster.Update{Err: u.Err})
		}
	}
}

func watch(tb testing.TB, r cluster.Registry) *watcher {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	w := &watcher{tb: tb, updates: make(chan cluster.Update), done: make(chan error, 1), stop: stop}
	go func() {
		w.done <- Watch(ctx, r.Watch, func(u cluster.Update) {
			select {
			case w.updates <- u:
			case <-ctx.Done():
			}
		})
	}()
	tb.Cleanup(stop)
	return w
}

// next returns the next update.
func (w *watcher) next() cluster.Update {
	w.tb.Helper()
	select {
	case u := <-w.updates:
		return u
	case err := <-w.done:
		w.tb.Fatalf("watch returned: %v", err)
	case <-time.After(await.Patience):
		w.tb.Fatal("no update came")
	}
	return cluster.Update{}
}

// until waits for a snapshot that ok accepts.
func (w *watcher) until(what string, ok func(*cluster.Snapshot) bool) *cluster.Snapshot {
	w.tb.Helper()
	deadline := time.After(await.Patience)
	var last *cluster.Snapshot
	for {
		select {
		case u := <-w.updates:
			if u.Snapshot == nil {
				w.tb.Logf("meanwhile: %v", u.Err)
				continue
			}
			if last = u.Snapshot; ok(last) {
				return last
			}
		case err := <-w.done:
			w.tb.Fatalf("watch returned: %v", err)
		case <-deadline:
			w.tb.Fatalf("no snapshot with %s came; the last one: %s", what, describe(last))
		}
	}
}

// fails waits for the report that the registry cannot be reached.
func (w *watcher) fails() error {
	w.tb.Helper()
	for {
		if u := w.next(); u.Err != nil {
			return u.Err
		}
	}
}

// end stops the watch and checks that it returns the context's error.
func (w *watcher) end() {
	w.tb.Helper()
	w.stop()
	select {
	case err := <-w.done:
		if !errors.Is(err, context.Canceled) {
			w.tb.Errorf("watch returned %v, not the context's error", err)
		}
	case <-time.After(await.Patience):
		w.tb.Fatal("watch did not return when its context ended")
	}
}

func describe(s *cluster.Snapshot) string {
	if s == nil {
		return "none"
	}
	var b strings.Builder
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "\n  %s %v %v %s %s", n.Name, n.PublicIP, n.PodCIDRs, n.BackendType, n.BackendData)
	}
	for name, err := range s.Faults {
		fmt.Fprintf(&b, "\n  %s: %v", name, err)
	}
	return b.String()
}

// has returns a function that reports whether a snapshot has exactly these nodes.
func has(nodes ...cluster.Node) func(*cluster.Snapshot) bool {
	return func(s *cluster.Snapshot) bool {
		if len(s.Nodes) != len(nodes) {
			return false
		}
		for _, n := range nodes {
			if !slices.ContainsFunc(s.Nodes, func(o *cluster.Node) bool { return same(o, &n) }) {
				return false
			}
		}
		return slices.IsSortedFunc(s.Nodes, func(a, b *cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	}
}

// noLeaks fails the test if goroutines of registries remain.
func noLeaks(tb testing.TB) {
	tb.Helper()
	var left []string
	await.Until(tb, func() bool {
		all := make([]byte, 1<<20)
		all = all[:runtime.Stack(all, true)]
		left = nil
		for _, g := range strings.Split(string(all), "\n\n") {
			if strings.Contains(g, "cnibox/store/cluster/") && !strings.Contains(g, "testing.tRunner") || strings.Contains(g, "net/http.(*persistConn)") {
				left = append(left, g)
			}
		}
		return len(left) == 0
	}, func() string {
		return fmt.Sprintf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
	})
}
