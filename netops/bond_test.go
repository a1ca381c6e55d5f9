package netops_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestBondLinks bonds two links of a container. The bond gives them its MTU and MAC, of which Verify for the attachments that made the links
// sees nothing. Undo gives each link what it had, also if a process in the container renamed it, or moved it to another master.
func TestBondLinks(t *testing.T) {
	netopstest.NeedKind(t, "bond")
	const ct = netops.Container
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: ct, Name: "net1", Down: true},
		&netops.Link{In: ct, Name: "net2", Down: true},
		&netops.Link{In: ct, Name: "net2", MAC: "02:00:00:00:00:12"},
		&netops.Link{In: ct, Name: "bond0", Kind: "bond", Mode: "balance-xor", MTU: 1400, Alias: testLabel, Bond: &netops.Bond{MIIMon: 100}},
		&netops.Link{In: ct, Name: "net1", Master: "bond0"},
		&netops.Link{In: ct, Name: "net2", Master: "bond0"},
		&netops.Link{In: ct, Name: "bond0", Up: true},
	}}
	const mac = "02:00:00:00:00:01"
	for name, since := range map[string]func(*testing.T, *netopstest.NS){
		"unchanged": func(*testing.T, *netopstest.NS) {},
		"renamed": func(t *testing.T, box *netopstest.NS) {
			for _, s := range [][2]string{{"net1", "x"}, {"net2", "net1"}, {"x", "net2"}} {
				inside(t, box, "ip", "link", "set", s[0], "down")
				inside(t, box, "ip", "link", "set", s[0], "name", s[1])
			}
		},
		"the bond is gone": func(t *testing.T, box *netopstest.NS) { inside(t, box, "ip", "link", "del", "bond0") },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			n, box := newNet(t, nil), netopstest.New(t)
			ns := open(t, n, box)
			for i, end := range []string{"net1", "net2"} {
				inside(t, box, "ip", "link", "add", end, "address", mac, "mtu", []string{"1500", "9000"}[i], "type", "veth", "peer", "name", end+"p")
				inside(t, box, "ip", "link", "set", end+"p", "up")
			}
			inside(t, box, "ip", "link", "set", "net1", "up")
			before := box.Snapshot(t)
			plan, err := n.Plan(ctx, spec, ns)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Apply(ctx, plan, ns); err != nil {
				t.Fatal(err)
			}
			if show := inside(t, box, "ip", "link", "show", "net2"); !strings.Contains(show, "mtu 1400") || !strings.Contains(show, mac) || !strings.Contains(show, ",UP") {
				t.Errorf("net2: %s", show)
			}
			wanted := netops.Spec{Objects: []netops.Object{
				&netops.Link{In: ct, Name: "bond0", Kind: "bond", Mode: "balance-xor", MTU: 1400, MAC: mac, Up: true, Bond: &netops.Bond{MIIMon: 100}},
				&netops.Link{In: ct, Name: "net1", Master: "bond0", MAC: mac, MTU: 1500},
				&netops.Link{In: ct, Name: "net1", Up: true},
				&netops.Link{In: ct, Name: "net2", Master: "bond0", MAC: "02:00:00:00:00:12", MTU: 9000, Up: true},
			}}
			if diffs, err := n.Verify(ctx, wanted, ns); err != nil || len(diffs) != 0 {
				t.Errorf("Verify: %v, %v", diffs, err)
			}
			inside(t, box, "ip", "link", "set", "net1", "down")
			inside(t, box, "ip", "link", "set", "net1", "nomaster")
			diffs, err := n.Verify(ctx, wanted, ns)
			if err != nil || len(diffs) != 2 { // its master and its state
				t.Errorf("Verify without a link: %v, %v", diffs, err)
			}
			repair, _ := n.PlanRepair(ctx, diffs, ns)
			if err := n.Apply(ctx, repair, ns); err != nil {
				t.Fatal(err)
			}
			if diffs, err := n.Verify(ctx, wanted, ns); err != nil || len(diffs) != 0 {
				t.Errorf("Verify after a repair: %v, %v", diffs, err)
			}
			since(t, box)
			for range 2 {
				if err := n.Undo(ctx, throughJSON(t, plan.Changes), ns); err != nil {
					t.Fatal(err)
				}
			}
			after := box.Snapshot(t)
			if name == "renamed" { // the names stay as the container wants them
				swapped := strings.Split(strings.NewReplacer("link net1 ", "link net2 ", "link net2 ", "link net1 ").Replace(after), "\n")
				slices.Sort(swapped)
				after = strings.TrimPrefix(strings.Join(swapped, "\n"), "\n") + "\n"
			}
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("after Undo (-before +after):\n%s", d)
			}
		})
	}
}

// TestBondInvalid checks that settings which no kernel accepts are refused before anything is made.
func TestBondInvalid(t *testing.T) {
	for _, l := range []*netops.Link{
		{Kind: "bond", Mode: "layer2"},
		{Kind: "dummy", Bond: &netops.Bond{}},
		{Kind: "bond", Bond: &netops.Bond{FailOverMAC: 3}},
		{Kind: "bond", Bond: &netops.Bond{MIIMon: 1 << 31}},
		{Kind: "bond", Bond: &netops.Bond{XmitHashPolicy: "layer4"}},
	} {
		l.In, l.Name = netops.Container, "bond0"
		if _, err := newNet(t, nil).Plan(t.Context(), netops.Spec{Objects: []netops.Object{l}}, nil); !errors.Is(err, netops.ErrInvalid) {
			t.Errorf("%s: %v", l, err)
		}
	}
}
