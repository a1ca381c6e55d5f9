package netops_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// show returns the state of a link as ip-link(8) prints it.
func show(t *testing.T, box *netopstest.NS, link string) string {
	t.Helper()
	return inside(t, box, "ip", "-o", "link", "show", "dev", link)
}

func queue(n uint32) *uint32 { return &n }

// TestLinkMode changes attributes of an existing link and restores them. It uses one
// object for each attribute, and one object for all of them.
func TestLinkMode(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	const ct, eth0 = netops.Container, "eth0"
	on := []netops.Object{
		&netops.Link{In: ct, Name: eth0, MAC: "02:00:00:00:00:06"},
		&netops.Link{In: ct, Name: eth0, MTU: 1400},
		&netops.Link{In: ct, Name: eth0, Promisc: true},
		&netops.Link{In: ct, Name: eth0, AllMulti: true},
		&netops.Link{In: ct, Name: eth0, TxQLen: queue(0)},
	}
	off := []netops.Object{&netops.Link{In: ct, Name: eth0, Unset: &netops.Unset{Promisc: true, AllMulti: true}, TxQLen: queue(500)}}
	for _, c := range []struct {
		name, prepare string
		want          []netops.Object
		plan          string
	}{
		{"on", "link set eth0 promisc off allmulticast off", on, `set link eth0 netns container address 02:00:00:00:00:06
  <- set link eth0 netns container address 02:00:00:00:00:05
set link eth0 netns container mtu 1400
  <- set link eth0 netns container mtu 1500
set link eth0 netns container promisc on
  <- set link eth0 netns container promisc off
set link eth0 netns container allmulticast on
  <- set link eth0 netns container allmulticast off
set link eth0 netns container txqueuelen 0
  <- set link eth0 netns container txqueuelen 1000
`},
		{"off", "link set eth0 promisc on allmulticast on", off, `set link eth0 netns container txqueuelen 500 promisc off allmulticast off
  <- set link eth0 netns container promisc on allmulticast on txqueuelen 1000
`},
		{"off already", "link set eth0 promisc off allmulticast on", off, `set link eth0 netns container txqueuelen 500 allmulticast off
  <- set link eth0 netns container allmulticast on txqueuelen 1000
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			inside(t, box, "ip", "link", "add", "name", eth0, "address", "02:00:00:00:00:05", "type", "bridge")
			inside(t, box, append([]string{"ip"}, strings.Fields(c.prepare)...)...)
			before := show(t, box, eth0)
			spec := netops.Spec{Objects: c.want}
			plan, err := n.Plan(ctx, spec, ns)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.plan, lines(plan.Changes)); d != "" {
				t.Errorf("plan (-want +got):\n%s", d)
			}
			if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) < len(plan.Changes) {
				t.Errorf("Verify before: %v, %v", diffs, err)
			}
			if err := n.Apply(ctx, plan, ns); err != nil {
				t.Fatal(err)
			}
			if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
				t.Errorf("Verify: %v, %v", diffs, err)
			}
			if again, err := n.Plan(ctx, spec, ns); err != nil || len(again.Changes) != 0 {
				t.Errorf("a second plan: %s, %v", lines(again.Changes), err)
			}
			// The container renames the link and makes another one with its name.
			inside(t, box, "ip", "link", "set", eth0, "name", "moved0")
			inside(t, box, "ip", "link", "add", "name", eth0, "mtu", "1300", "type", "bridge")
			other := show(t, box, eth0)
			if err := n.Undo(ctx, plan.Changes, ns); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(other, show(t, box, eth0)); d != "" {
				t.Errorf("the other link (-before +after):\n%s", d)
			}
			inside(t, box, "ip", "link", "del", eth0)
			inside(t, box, "ip", "link", "set", "moved0", "name", eth0)
			if d := cmp.Diff(before, show(t, box, eth0)); d != "" {
				t.Errorf("after Undo (-before +after):\n%s", d)
			}
			inside(t, box, "ip", "link", "del", eth0)
			if err := n.Undo(ctx, plan.Changes, ns); err != nil {
				t.Errorf("Undo without the link: %v", err)
			}
		})
	}
}

// TestUndoOutdatedLink restores an MTU and a MAC that the kernel now refuses.
func TestUndoOutdatedLink(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	inside(t, box, "ip", "link", "add", "name", "parent", "type", "bridge")
	inside(t, box, "ip", "link", "add", "name", "eth0", "link", "parent", "address", "02:00:00:00:00:05", "type", "macvlan", "mode", "bridge")
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Container, Name: "eth0", MTU: 1400},
		&netops.Link{In: netops.Container, Name: "eth0", MAC: "02:00:00:00:00:06"},
	}}
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	inside(t, box, "ip", "link", "set", "eth0", "up")
	inside(t, box, "ip", "link", "set", "parent", "up")
	inside(t, box, "ip", "link", "set", "parent", "mtu", "1300")
	inside(t, box, "ip", "link", "add", "name", "eth1", "link", "parent", "address", "02:00:00:00:00:05", "type", "macvlan", "mode", "bridge")
	inside(t, box, "ip", "link", "set", "eth1", "up")
	if err := n.Undo(ctx, plan.Changes, ns); err != nil {
		t.Errorf("Undo: %v", err)
	}
	bad := netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: "eth0", MTU: 9000}}}
	if err := n.Ensure(ctx, bad, ns); !errors.Is(err, netops.ErrInvalid) {
		t.Errorf("an MTU above the parent's: %v, want ErrInvalid", err)
	}
}
