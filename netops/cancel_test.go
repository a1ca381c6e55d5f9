package netops_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// ending is a context whose Err reports a cancellation after some calls.
type ending struct {
	context.Context
	left *int
}

func (c ending) Err() error {
	*c.left--
	if *c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestCancelledAnywhere cancels an Apply at each place that checks the context.
// Nothing is left of it.
func TestCancelledAnywhere(t *testing.T) {
	ctx := context.Background()
	spec := wanted("tbr2", "vth2")
	defer clean(t, spec)
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	var base netops.Spec
	for _, o := range spec.Objects {
		if o.IsShared() {
			base.Add(o)
		}
	}
	base.Add(&netops.Element{Set: "macguard_ports", Key: []string{"other0"}, Label: "other"})
	defer clean(t, base)
	if err := n.Ensure(ctx, base, ns); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		before := netopstest.Snapshot(t) + box.Snapshot(t)
		left := i
		err = n.Apply(ending{ctx, &left}, plan, ns)
		if err == nil {
			if err := n.Undo(ctx, plan.Changes, ns); err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("place %d: %v", i, err)
		}
		if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
			t.Fatalf("after place %d, %v (-before +after):\n%s", i, err, d)
		}
	}
}

// TestCancelledShared cancels an Apply that makes a shared link with two ends. The
// link is then either absent or labelled: without a label, later calls take it for
// the link of another program.
func TestCancelledShared(t *testing.T) {
	ctx := context.Background()
	spec := netops.Spec{Objects: []netops.Object{&netops.Link{
		In: netops.Host, Shared: true, Name: "pair0", Kind: "veth", Alias: "cnibox:shared", Up: true,
		Peer: &netops.Peer{In: netops.Host, Name: "pair1"},
	}}}
	n := newNet(t, nil)
	for i := 0; ; i++ {
		plan, err := n.Plan(ctx, spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		left := i
		err = n.Apply(ending{ctx, &left}, plan, nil)
		l, missing := n.Link(ctx, nil, "pair0")
		if missing == nil && l.Alias != "cnibox:shared" {
			t.Errorf("place %d: %+v", i, l)
		}
		if missing == nil {
			run(t, "ip", "link", "del", "pair0")
		}
		if err == nil {
			break
		}
	}
}
