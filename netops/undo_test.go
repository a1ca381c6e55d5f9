package netops_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// canceller cancels the call's context after the n-th step.
type canceller struct {
	n      int
	cancel func()
}

func (c *canceller) Before(netops.Step) error { return nil }

func (c *canceller) After(netops.Step) {
	if c.n--; c.n == 0 {
		c.cancel()
	}
}

// TestCancelledApplyUndoes cancels the context after each step in turn. Apply
// must revert its changes although the context is cancelled.
func TestCancelledApplyUndoes(t *testing.T) {
	box := netopstest.New(t)
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Name: "vtc", Kind: "veth", Alias: testLabel, Peer: &netops.Peer{In: netops.Container, Name: "eth0"}},
		&netops.Link{In: netops.Container, Name: "lo", MTU: 9000},
		&netops.Sysctl{In: netops.Container, Key: "net/ipv4/conf/lo/arp_notify", Value: "1"},
		&netops.Addr{In: netops.Container, Link: "eth0", Address: netip.MustParsePrefix("10.1.0.2/24")},
	}}
	before := netopstest.Snapshot(t) + box.Snapshot(t)
	for i := 1; i < len(spec.Objects); i++ {
		ctx, cancel := context.WithCancel(context.Background())
		n := newNet(t, &canceller{i, cancel})
		ns := open(t, n, box)
		err := n.Ensure(ctx, spec, ns)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled after step %d: %v", i, err)
		}
		if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
			t.Errorf("cancelled after step %d (-before +after):\n%s", i, d)
		}
	}
}

// TestUndoGoesOn runs a failing inverse between two that succeed.
func TestUndoGoesOn(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	del := func(o netops.Object) netops.Change {
		return netops.Change{Do: netops.Step{Verb: netops.VerbAdd, Object: o}, Undo: &netops.Step{Verb: netops.VerbDel, Object: o}}
	}
	first := &netops.Link{In: netops.Host, Name: "vtu1", Kind: "veth", Alias: testLabel, Peer: &netops.Peer{In: netops.Container, Name: "eth1"}}
	last := &netops.Link{In: netops.Container, Name: "tbr9", Kind: "bridge"}
	if err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{first, last}}, ns); err != nil {
		t.Fatal(err)
	}
	refused := &netops.Sysctl{In: netops.Container, Key: "net/ipv4/tcp_available_congestion_control", Value: "x"} // read-only
	outdated := &netops.Sysctl{In: netops.Container, Key: "net/ipv4/conf/lo/arp_notify", Value: "no number any more"}
	changes := []netops.Change{
		del(first),
		{Do: netops.Step{Verb: netops.VerbSet, Object: refused}, Undo: &netops.Step{Verb: netops.VerbSet, Object: refused}},
		{Do: netops.Step{Verb: netops.VerbSet, Object: outdated}, Undo: &netops.Step{Verb: netops.VerbSet, Object: outdated}},
		{Do: netops.Step{Verb: netops.VerbAdd, Object: last}, Undo: &netops.Step{Verb: "burn", Object: last}},
		del(last),
	}
	err := n.Undo(ctx, changes, ns)
	if !errors.Is(err, netops.ErrPermission) || strings.Contains(err.Error(), "arp_notify") || !strings.Contains(err.Error(), "burn") {
		t.Errorf("Undo: %v, want both faults", err)
	}
	if _, err := n.Link(ctx, nil, "vtu1"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("the first link: %v", err)
	}
	if _, err := n.Link(ctx, ns, "tbr9"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("the last link: %v", err)
	}
}
