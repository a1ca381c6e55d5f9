package netops_test

import (
	"context"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestSysctlOdd has a setting that is empty and is so again, and one that can
// only be written.
func TestSysctlOdd(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Sysctl{In: netops.Container, Key: "net/ipv4/ip_local_reserved_ports", Value: "8080"},
		&netops.Sysctl{In: netops.Container, Key: "net/ipv4/route/flush", Value: "1"},
	}}
	changes, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, changes, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	if err := n.Undo(ctx, changes, ns); err != nil {
		t.Fatal(err)
	}
	if have, err := n.Sysctl(ctx, ns, "net/ipv4/ip_local_reserved_ports"); have != "" || err != nil {
		t.Errorf("after Undo: %q, %v", have, err)
	}
}
