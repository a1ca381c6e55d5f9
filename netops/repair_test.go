package netops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestPlanRepair changes one property at a time, and repairs it from its differences.
func TestPlanRepair(t *testing.T) {
	ctx := t.Context()
	spec := wanted("tbr4", "vth4")
	n, box := newNet(t, nil), netopstest.New(t)
	defer clean(t, spec)
	ns := open(t, n, box)
	if err := n.Ensure(ctx, spec, ns); err != nil {
		t.Fatal(err)
	}
	host := func(s string) { run(t, strings.Fields(s)...) }
	ct := func(s string) { inside(t, box, strings.Fields(s)...) }
	for _, c := range []struct {
		in     func(string)
		tamper string
	}{
		{host, "ip link set vth4 mtu 1300 down"},
		{host, "ip link set vth4 nomaster"},
		{host, "ip address del 10.22.0.1/16 dev tbr4"},
		{host, "sysctl -qw net.ipv4.ip_forward=0"},
		{host, "nft flush ruleset"},
		{ct, "ip neighbour replace 10.22.0.77 lladdr 02:00:00:00:00:78 dev eth0"},
		{ct, "ip link set eth0 address 02:00:00:00:00:32"},
		{ct, "ip address flush dev eth0"},
		{ct, "ip route change default via 10.22.0.1 mtu 1299 advmss 1200"},
		{ct, "ip rule del priority 100"},
		{ct, "ip link set eth0 down"},
		{ct, "ip link del eth0"},
	} {
		c.in(c.tamper)
		diffs, err := n.Verify(ctx, spec, ns)
		if err != nil || len(diffs) == 0 {
			t.Fatalf("%s: differences %v, %v", c.tamper, diffs, err)
		}
		for range 2 { // the settings of a link that was made
			plan, repairs := n.PlanRepair(ctx, diffs, ns)
			for o, r := range repairs {
				if r.Err != nil {
					t.Errorf("%s: %s: %v", c.tamper, o, r.Err)
				}
			}
			if err := n.Apply(ctx, plan, ns); err != nil {
				t.Fatalf("%s: repair: %v", c.tamper, err)
			}
			if diffs, err = n.Verify(ctx, spec, ns); err != nil {
				t.Fatal(err)
			}
		}
		if len(diffs) > 0 {
			t.Errorf("%s: after the repair: %v", c.tamper, diffs)
		}
	}
}

// TestPlanRepairRefuses leaves what belongs to another program.
func TestPlanRepairRefuses(t *testing.T) {
	ctx := t.Context()
	n := newNet(t, nil)
	veth := &netops.Link{In: netops.Host, Name: "vth5", Kind: "veth", Alias: testLabel, MTU: 1400, Peer: &netops.Peer{In: netops.Host, Name: "vth6"}}
	spec := netops.Spec{Objects: []netops.Object{veth}}
	run(t, "ip", "link", "add", "vth5", "type", "veth", "peer", "name", "vth6")
	defer run(t, "ip", "link", "del", "vth5")
	diffs, err := n.Verify(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, repairs := n.PlanRepair(ctx, diffs, nil)
	if len(plan.Changes) > 0 || !errors.Is(repairs[veth].Err, netops.ErrExists) {
		t.Errorf("plan %v, repairs %v", plan.Changes, repairs)
	}
}
