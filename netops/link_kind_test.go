package netops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// kindCase is a link of one kind, with or without a parent.
type kindCase struct {
	link netops.Link
	// line is its plan. show is text that ip -d link must print.
	line string
	show []string
}

func kindCases() []kindCase {
	const ct, host = netops.Container, netops.Host
	user, group := uint32(61001), uint32(61002)
	on, off := true, false
	return []kindCase{
		{
			netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: host, Mode: "private", MAC: "02:00:00:00:00:05", MTU: 1400, BCQueueLen: 77, Up: true},
			"link par0 link-netns host type macvlan mode private bcqueuelen 77 address 02:00:00:00:00:05 mtu 1400 up",
			[]string{"02:00:00:00:00:05", "mtu 1400", "mode private bcqueuelen 77", ",UP"},
		},
		{
			netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: host, Mode: "vepa"},
			"link par0 link-netns host type macvlan mode vepa",
			[]string{"mode vepa", "mtu 1450", "state DOWN"},
		},
		{
			netops.Link{Kind: "macvlan", Parent: "par1", ParentIn: ct, Mode: "bridge"},
			"link par1 type macvlan mode bridge",
			[]string{"eth0@par1", "mode bridge"},
		},
		{
			netops.Link{Kind: "macvlan", Parent: "par1", Mode: "passthru"},
			"link par1 type macvlan mode passthru",
			[]string{"eth0@par1", "mode passthru"},
		},
		{
			netops.Link{Kind: "ipvlan", Parent: "par0", ParentIn: host, Mode: "l2"},
			"link par0 link-netns host type ipvlan mode l2",
			[]string{"ipvlan  mode l2"},
		},
		{
			netops.Link{Kind: "ipvlan", Parent: "par1", Mode: "l3", MTU: 1300, Up: true},
			"link par1 type ipvlan mode l3 mtu 1300 up",
			[]string{"ipvlan  mode l3", "mtu 1300", ",UP"},
		},
		{
			netops.Link{Kind: "ipvlan", Parent: "par0", ParentIn: host, Mode: "l3s"},
			"link par0 link-netns host type ipvlan mode l3s",
			[]string{"ipvlan  mode l3s"},
		},
		{
			netops.Link{Kind: "vlan", Parent: "par0", ParentIn: host, VLANID: 5, MTU: 1400, Up: true},
			"link par0 link-netns host type vlan id 5 mtu 1400 up",
			[]string{"vlan protocol 802.1Q id 5", "mtu 1400", ",UP"},
		},
		{
			netops.Link{Kind: "vlan", Parent: "par1", VLANID: 4094, MAC: "02:00:00:00:00:05"},
			"link par1 type vlan id 4094 address 02:00:00:00:00:05",
			[]string{"eth0@par1", "id 4094", "02:00:00:00:00:05"},
		},
		{
			netops.Link{Kind: "vlan", Parent: "par1"},
			"link par1 type vlan",
			[]string{"vlan protocol 802.1Q id 0"},
		},
		{
			netops.Link{Kind: "dummy", MAC: "02:00:00:00:00:05", MTU: 1400, Up: true},
			"type dummy address 02:00:00:00:00:05 mtu 1400 up",
			[]string{"dummy", "mtu 1400", "02:00:00:00:00:05", ",UP"},
		},
		{
			netops.Link{Kind: "bond", Mode: "active-backup", MTU: 1400, Bond: &netops.Bond{MIIMon: 100, FailOverMAC: 1, AllSlavesActive: &on}},
			"type bond mode active-backup miimon 100 fail_over_mac 1 all_slaves_active 1 mtu 1400",
			[]string{"mode active-backup", "miimon 100", "fail_over_mac active", "all_slaves_active 1", "mtu 1400", "state DOWN"},
		},
		{
			netops.Link{Kind: "bond", Mode: "balance-tlb", Bond: &netops.Bond{TLBDynamicLB: &off, XmitHashPolicy: "layer3+4"}},
			"type bond mode balance-tlb miimon 0 tlb_dynamic_lb 0 xmit_hash_policy layer3+4",
			[]string{"mode balance-tlb", "miimon 0", "xmit_hash_policy layer3+4", "tlb_dynamic_lb 0"},
		},
		{
			netops.Link{Kind: "tun"},
			"type tun mode tap",
			[]string{"tun type tap pi off vnet_hdr on persist on", "state DOWN"},
		},
		{
			netops.Link{Kind: "tun", Owner: &user, Group: &group, MultiQueue: true, MAC: "02:00:00:00:00:05", MTU: 1400, Up: true},
			"type tun mode tap user 61001 group 61002 multi_queue address 02:00:00:00:00:05 mtu 1400 up",
			[]string{"multi_queue", "user 61001", "group 61002", "mtu 1400", "02:00:00:00:00:05", ",UP"},
		},
	}
}

// eachKind runs f for all cases whose kind this kernel has, with a container that has the
// parent par1. The host has the parent par0, and an interface with the name of the
// container's link, eth0.
func eachKind(t *testing.T, f func(t *testing.T, c kindCase, n *netops.Net, box *netopstest.NS)) {
	t.Helper()
	run(t, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0p")
	defer run(t, "ip", "link", "del", "eth0")
	run(t, "ip", "link", "add", "par0", "mtu", "1450", "up", "type", "bridge")
	defer run(t, "ip", "link", "del", "par0")
	for i, c := range kindCases() {
		c.link.In, c.link.Name, c.link.Alias = netops.Container, "eth0", testLabel+" text"
		t.Run(fmt.Sprintf("%d %s %s", i, c.link.Kind, c.link.Mode), func(t *testing.T) {
			netopstest.NeedKind(t, c.link.Kind)
			n, box := newNet(t, nil), netopstest.New(t)
			inside(t, box, "ip", "link", "add", "par1", "up", "type", "bridge")
			f(t, c, n, box)
		})
	}
}

// TestKinds makes a link of each kind and deletes it. The link must be made directly in
// the container under its final name, although the host has an eth0 too. The reference
// plugins first make it in the host under a temporary name, which other programs can see
// (cni-plugins #1183).
func TestKinds(t *testing.T) {
	ctx := context.Background()
	eachKind(t, func(t *testing.T, c kindCase, n *netops.Net, box *netopstest.NS) {
		ns := open(t, n, box)
		before := netopstest.Snapshot(t) + box.Snapshot(t)
		spec := netops.Spec{Objects: []netops.Object{
			&c.link,
			&netops.Sysctl{In: netops.Container, Key: "net/ipv4/conf/eth0/arp_notify", Value: "1"},
			&netops.Addr{In: netops.Container, Link: "eth0", Address: netip.MustParsePrefix("10.1.0.2/24")},
		}}
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		alias := fmt.Sprintf(" alias %q", c.link.Alias)
		want := "add link eth0 netns container " + c.line + alias + "\n  <- del link eth0 netns container type " + c.link.Kind
		if c.link.Kind == "tun" {
			want += " mode tap"
		}
		if got, _, _ := strings.Cut(lines(plan.Changes), "\nset sysctl"); got != want+alias {
			t.Errorf("Plan: %s\nwant: %s", got, want+alias)
		}
		if err := n.Apply(ctx, plan, ns); err != nil {
			t.Fatal(err)
		}
		if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
			t.Errorf("Verify: %v, %v", diffs, err)
		}
		show := inside(t, box, "ip", "-d", "link", "show", "eth0")
		for _, s := range append(c.show, "alias "+c.link.Alias) {
			if !strings.Contains(show, s) {
				t.Errorf("ip link does not show %q: %s", s, show)
			}
		}
		if _, err := n.Plan(ctx, spec, ns); !errors.Is(err, netops.ErrExists) {
			t.Errorf("second Plan: %v", err)
		}
		stored := throughJSON(t, plan.Changes)
		if d := cmp.Diff(lines(plan.Changes), lines(stored)); d != "" {
			t.Errorf("after JSON: %s", d)
		}
		for range 2 {
			if err := n.Undo(ctx, stored, ns); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
			t.Errorf("after Undo (-before +after):\n%s", d)
		}
	})
}

func throughJSON(t *testing.T, changes []netops.Change) []netops.Change {
	t.Helper()
	raw, err := json.Marshal(changes)
	if err != nil {
		t.Fatal(err)
	}
	var stored []netops.Change
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	return stored
}

// TestKindNameTaken makes another eth0 in the container between Plan and Apply. Apply must
// fail and leave that link unchanged.
func TestKindNameTaken(t *testing.T) {
	ctx := context.Background()
	eachKind(t, func(t *testing.T, c kindCase, n *netops.Net, box *netopstest.NS) {
		ns := open(t, n, box)
		spec := netops.Spec{Objects: []netops.Object{&c.link}}
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		inside(t, box, "ip", "link", "add", "eth0", "mtu", "1234", "type", "bridge")
		before := box.Snapshot(t)
		err = n.Apply(ctx, plan, ns)
		if !errors.Is(err, netops.ErrExists) || !strings.HasPrefix(err.Error(), `interface "eth0" exists already`) {
			t.Errorf("Apply: %v", err)
		}
		if err := n.Undo(ctx, plan.Changes, ns); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(before, box.Snapshot(t)); d != "" {
			t.Errorf("the other program's link (-before +after):\n%s", d)
		}
	})
}

// TestKindKilledBeforeLabel undoes a link whose process died after the request that makes
// it and before the request that labels it. Another program's link with the same name and
// kind must stay.
func TestKindKilledBeforeLabel(t *testing.T) {
	ctx := context.Background()
	eachKind(t, func(t *testing.T, c kindCase, n *netops.Net, box *netopstest.NS) {
		ns := open(t, n, box)
		c.link.MAC = "" // an ipvlan has its parent's MAC
		spec := netops.Spec{Objects: []netops.Object{&c.link}}
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Apply(ctx, plan, ns); err != nil {
			t.Fatal(err)
		}
		inside(t, box, "ip", "link", "set", "eth0", "alias", "")
		if err := n.Undo(ctx, plan.Changes, ns); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Link(ctx, ns, "eth0"); !errors.Is(err, netops.ErrNotExist) {
			t.Errorf("the link without a label: %v", err)
		}
		if c.link.Kind == "tun" {
			inside(t, box, "ip", "tuntap", "add", "eth0", "mode", "tap")
		} else {
			args := []string{"ip", "link", "add", "link", "par1", "eth0", "type", c.link.Kind}
			if c.link.Kind == "vlan" {
				args = append(args, "id", "5")
			}
			inside(t, box, args...)
		}
		if err := n.Undo(ctx, plan.Changes, ns); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Link(ctx, ns, "eth0"); err != nil {
			t.Errorf("another program's link: %v", err)
		}
	})
}

// TestKindParentGone deletes the parent. The kernel deletes the link with it, and Undo
// must succeed.
func TestKindParentGone(t *testing.T) {
	ctx := context.Background()
	eachKind(t, func(t *testing.T, c kindCase, n *netops.Net, box *netopstest.NS) {
		if c.link.Parent != "par1" {
			return // no parent, or par0, which the other cases need
		}
		ns := open(t, n, box)
		spec := netops.Spec{Objects: []netops.Object{&c.link}}
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Apply(ctx, plan, ns); err != nil {
			t.Fatal(err)
		}
		if l, err := n.Link(ctx, ns, "eth0"); err != nil || l.ParentName != "par1" || l.Mode != c.link.Mode || l.VLANID != c.link.VLANID {
			t.Errorf("Link: %+v, %v", l, err)
		}
		inside(t, box, "ip", "link", "del", "par1")
		if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 1 || diffs[0].Have != "absent" {
			t.Errorf("Verify: %v, %v", diffs, err)
		}
		if err := n.Undo(ctx, plan.Changes, ns); err != nil {
			t.Error(err)
		}
		if err := n.Apply(ctx, plan, ns); !errors.Is(err, netops.ErrNotExist) || !strings.Contains(err.Error(), `parent of interface "eth0"`) {
			t.Errorf("Apply without the parent: %v", err)
		}
		if _, err := n.Plan(ctx, spec, ns); !errors.Is(err, netops.ErrNotExist) || !strings.Contains(err.Error(), `parent of interface "eth0"`) {
			t.Errorf("Plan without the parent: %v", err)
		}
	})
}

// TestKindFails makes each step fail in turn. Nothing may remain.
func TestKindFails(t *testing.T) {
	ctx := context.Background()
	eachKind(t, func(t *testing.T, c kindCase, _ *netops.Net, box *netopstest.NS) {
		spec := netops.Spec{Objects: []netops.Object{
			&c.link,
			&netops.Addr{In: netops.Container, Link: "eth0", Address: netip.MustParsePrefix("10.1.0.2/24")},
		}}
		before := netopstest.Snapshot(t) + box.Snapshot(t)
		for i := range spec.Objects {
			n := newNet(t, &netopstest.FailNth{N: i + 1})
			if err := n.Ensure(ctx, spec, open(t, n, box)); !errors.Is(err, netopstest.ErrProbe) {
				t.Errorf("step %d: %v", i+1, err)
			}
			if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
				t.Errorf("step %d (-before +after):\n%s", i+1, d)
			}
		}
	})
}
