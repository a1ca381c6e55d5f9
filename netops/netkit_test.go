package netops_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestNetkit makes a pair of the kind netkit in mode l3, one end of which is in a container, and deletes it. Neither end has a MAC.
func TestNetkit(t *testing.T) {
	netopstest.NeedKind(t, "netkit")
	ctx := t.Context()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	before := netopstest.Snapshot(t) + box.Snapshot(t)
	pair := &netops.Link{
		In: netops.Host, Name: "nk0", Kind: "netkit", Mode: "l3", MTU: 1400, Up: true, Alias: testLabel, DevGroup: 7,
		Peer: &netops.Peer{In: netops.Container, Name: "eth0", MTU: 1400},
	}
	spec := netops.Spec{Objects: []netops.Object{
		pair,
		&netops.Addr{In: netops.Container, Link: "eth0", Address: netip.MustParsePrefix("10.1.0.2/32")},
		&netops.Link{In: netops.Container, Name: "eth0", Up: true},
	}}
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	const want = "add link nk0 type netkit mode l3 mtu 1400 group 7 up peer name eth0 netns container mtu 1400 alias "
	if got := lines(plan.Changes); !strings.HasPrefix(got, want) {
		t.Errorf("Plan: %s\nwant: %s", got, want)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	other := *pair
	other.Mode = "l2"
	if diffs, err := n.Verify(ctx, netops.Spec{Objects: []netops.Object{&other}}, ns); err != nil || len(diffs) != 1 {
		t.Errorf("Verify for another mode: %v, %v", diffs, err)
	}
	end, err := n.HostEnd(ctx, ns, "eth0")
	if err != nil || end.Name != "nk0" || !end.IsPairEnd() || !end.OperUp || end.Group != 7 || !end.NoARP || end.MAC != "" {
		t.Errorf("the host's end of eth0: %+v, %v", end, err)
	}
	for range 2 {
		if err := n.Undo(ctx, throughJSON(t, plan.Changes), ns); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
		t.Errorf("after Undo (-before +after):\n%s", d)
	}
}

// TestNetkitInvalid checks that a pair that no kernel makes is refused before anything is made.
func TestNetkitInvalid(t *testing.T) {
	const mac = "02:00:00:00:00:01"
	for _, l := range []*netops.Link{
		{Mode: "l3s"},
		{Mode: "l3", MAC: mac},
		{MAC: mac}, // l3 is the kernel's default
		{Mode: "l3", Peer: &netops.Peer{In: netops.Container, Name: "eth0", MAC: mac}},
	} {
		l.In, l.Name, l.Kind = netops.Host, "nk0", "netkit"
		if _, err := newNet(t, nil).Plan(t.Context(), netops.Spec{Objects: []netops.Object{l}}, nil); !errors.Is(err, netops.ErrInvalid) {
			t.Errorf("%s: %v", l, err)
		}
	}
}
