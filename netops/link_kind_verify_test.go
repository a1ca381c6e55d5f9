package netops_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestKindTampered verifies a link against a Link with other properties. Verify must
// report each difference.
func TestKindTampered(t *testing.T) {
	ctx := context.Background()
	owner := uint32(61001)
	for _, c := range []struct {
		link   netops.Link
		change func(*netops.Link)
		want   string
	}{
		{netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: netops.Host, Mode: "bridge"}, func(l *netops.Link) { l.Mode = "private" }, "mode private, not mode bridge"},
		{netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: netops.Host}, func(l *netops.Link) { l.Parent = "lo" }, "parent lo, not another parent"},
		{netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: netops.Host}, func(l *netops.Link) { l.ParentIn, l.Parent = "", "lo" }, "parent lo, not another parent"},
		{netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: netops.Host}, func(l *netops.Link) { l.Parent = "none" }, "parent none, not another parent"},
		{netops.Link{Kind: "macvlan", Parent: "par0", ParentIn: netops.Host}, func(l *netops.Link) { l.Kind = "ipvlan" }, "kind ipvlan, not kind macvlan"},
		{netops.Link{Kind: "ipvlan", Parent: "par0", ParentIn: netops.Host, Mode: "l3"}, func(l *netops.Link) { l.Mode = "l2" }, "mode l2, not mode l3"},
		{netops.Link{Kind: "vlan", Parent: "par0", ParentIn: netops.Host, VLANID: 5}, func(l *netops.Link) { l.VLANID = 6 }, "id 6, not id 5"},
		{
			netops.Link{Kind: "bond", Mode: "balance-alb", Bond: &netops.Bond{MIIMon: 100}},
			func(l *netops.Link) {
				on, off := true, false
				l.Mode, l.Bond = "802.3ad", &netops.Bond{MIIMon: 50, FailOverMAC: 2, AllSlavesActive: &on, TLBDynamicLB: &off, XmitHashPolicy: "layer2+3"}
			},
			"mode 802.3ad, not mode balance-alb; miimon 50, not miimon 100; fail_over_mac 2, not fail_over_mac 0; all_slaves_active 1, not all_slaves_active 0; " +
				"tlb_dynamic_lb 0, not tlb_dynamic_lb 1; xmit_hash_policy layer2+3, not xmit_hash_policy layer2",
		},
		{netops.Link{Kind: "tun", Owner: &owner}, func(l *netops.Link) { l.Owner, l.Group, l.MultiQueue = new(uint32), new(uint32), true }, "user 0, not user 61001; group 0, not group none; multi_queue on, not multi_queue off"},
	} {
		c.link.In, c.link.Name, c.link.Alias = netops.Container, "eth0", testLabel
		t.Run(c.want, func(t *testing.T) {
			netopstest.NeedKind(t, c.link.Kind)
			// Each case needs its own parent: a parent of macvlans cannot have ipvlans.
			run(t, "ip", "link", "add", "par0", "up", "type", "bridge")
			defer run(t, "ip", "link", "del", "par0")
			n, box := newNet(t, nil), netopstest.New(t)
			ns := open(t, n, box)
			if err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{&c.link}}, ns); err != nil {
				t.Fatal(err)
			}
			other := c.link
			c.change(&other)
			diffs, err := n.Verify(ctx, netops.Spec{Objects: []netops.Object{&other}}, ns)
			var got []string
			for _, d := range diffs {
				got = append(got, d.Want+", not "+d.Have)
			}
			if err != nil || strings.Join(got, "; ") != c.want {
				t.Errorf("Verify: %q, %v", got, err)
			}
			if c.link.Kind != "ipvlan" && c.link.Kind != "macvlan" {
				return
			}
			other = c.link
			other.Name, other.MTU = "eth1", 1501
			if _, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{&other}}, ns); !errors.Is(err, netops.ErrInvalid) ||
				!strings.Contains(err.Error(), `interface "eth1": mtu 1501 is more than the 1500 of its parent "par0"`) {
				t.Errorf("Plan with a large MTU: %v", err)
			}
		})
	}
}

// TestParentTaken checks that the loopback device and a bridge port are refused as parents.
func TestParentTaken(t *testing.T) {
	ctx := context.Background()
	run(t, "ip", "link", "add", "par0", "type", "veth", "peer", "name", "par0p")
	defer run(t, "ip", "link", "del", "par0")
	run(t, "ip", "link", "add", "br0", "type", "bridge")
	defer run(t, "ip", "link", "del", "br0")
	run(t, "ip", "link", "set", "par0", "master", "br0")
	n, box := newNet(t, nil), netopstest.New(t)
	l := &netops.Link{In: netops.Container, Name: "eth0", Kind: "macvlan", Parent: "lo", ParentIn: netops.Host, Alias: testLabel}
	if _, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{l}}, nil); !errors.Is(err, netops.ErrInvalid) {
		t.Errorf("Plan on lo: %v", err)
	}
	l.Parent = "par0"
	err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{l}}, open(t, n, box))
	if !errors.Is(err, netops.ErrConflict) || !strings.Contains(err.Error(), `parent "par0" of interface "eth0" is a port of a bridge or bond, or has a link of kind "ipvlan"`) {
		t.Errorf("Ensure: %v", err)
	}
}

// TestUnknownKind makes a link of a kind that the kernel does not know.
func TestUnknownKind(t *testing.T) {
	n, box := newNet(t, nil), netopstest.New(t)
	spec := netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: "eth0", Kind: "nosuch"}}}
	err := n.Ensure(context.Background(), spec, open(t, n, box))
	if !errors.Is(err, netops.ErrNotSupported) || !strings.Contains(err.Error(), "see what 'modprobe rtnl-link-nosuch' says") {
		t.Errorf("Ensure: %v", err)
	}
}

// TestTapWithoutDevice hides /dev/net/tun. A container that runs the plugin may lack it.
func TestTapWithoutDevice(t *testing.T) {
	if err := unix.Mount("tmpfs", "/dev/net", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount("/dev/net", unix.MNT_DETACH) //nolint:errcheck // the namespace ends with the test
	n, box := newNet(t, nil), netopstest.New(t)
	spec := netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: "tap0", Kind: "tun"}}}
	if err := n.Ensure(context.Background(), spec, open(t, n, box)); !errors.Is(err, netops.ErrNotSupported) || !strings.Contains(err.Error(), "there is no /dev/net/tun") {
		t.Errorf("Ensure: %v", err)
	}
}

// TestSharedKind checks that a shared vlan or vxlan is made once and deleted by its
// inverse. A link with another ID is a conflict.
func TestSharedKind(t *testing.T) {
	t.Run("vlan", func(t *testing.T) {
		netopstest.NeedKind(t, "vlan")
		sharedKind(t, netops.Link{Kind: "vlan", VLANID: 5}, func(l *netops.Link) { l.VLANID = 6 })
	})
	t.Run("vxlan", func(t *testing.T) {
		group := netip.MustParseAddr("239.0.0.5")
		sharedKind(t, netops.Link{Kind: "vxlan", VNI: 5, Group4: group}, func(l *netops.Link) { l.VNI = 6 })
	})
}

func sharedKind(t *testing.T, l netops.Link, change func(*netops.Link)) {
	t.Helper()
	ctx := context.Background()
	run(t, "ip", "link", "add", "par0", "up", "type", "bridge")
	defer run(t, "ip", "link", "del", "par0")
	n := newNet(t, nil)
	l.In, l.Shared, l.Name, l.Parent, l.Up, l.Alias = netops.Host, true, "par0.5", "par0", true, "cnibox:shared"
	spec := netops.Spec{Objects: []netops.Object{&l}}
	plan, err := n.Plan(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is like a process that planned at the same time
		if err := n.Apply(ctx, plan, nil); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := n.Plan(ctx, spec, nil); err != nil || len(again.Changes) != 0 {
		t.Errorf("Plan: %s, %v", lines(again.Changes), err)
	}
	other := l
	change(&other)
	if _, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{&other}}, nil); !errors.Is(err, netops.ErrConflict) || err.Error() != `interface "par0.5" has id 5 instead of id 6: conflicts with what is there` {
		t.Errorf("Plan with another ID: %v", err)
	}
	if err := n.Undo(ctx, netops.SharedInverses(spec), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Link(ctx, nil, "par0.5"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("after SharedInverses: %v", err)
	}
}
