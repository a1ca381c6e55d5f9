package netops_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestRaceForOneBridge runs 16 concurrent calls that create the same bridge,
// gateways and masquerade. All succeed, and there is one object of each.
func TestRaceForOneBridge(t *testing.T) {
	ctx := context.Background()
	var shared netops.Spec
	for _, o := range wanted("tbr4", "unused").Objects {
		if o.IsShared() {
			shared.Add(o)
		}
	}
	for range 10 {
		before := netopstest.Snapshot(t)
		var start, done sync.WaitGroup
		errs := make([]error, 16)
		start.Add(len(errs))
		for i := range errs {
			done.Go(func() {
				n := netops.New(netops.Options{})
				defer n.Close()
				plan, err := n.Plan(ctx, shared, nil)
				start.Done()
				start.Wait() // every plan finds no object
				if err == nil {
					err = n.Apply(ctx, plan, nil)
				}
				errs[i] = err
			})
		}
		done.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		n := newNet(t, nil)
		if diffs, err := n.Verify(ctx, shared, nil); err != nil || len(diffs) != 0 {
			t.Errorf("Verify: %v, %v", diffs, err)
		}
		l, err := n.Link(ctx, nil, "tbr4")
		if err != nil || l.Alias != "cnibox:shared" {
			t.Errorf("bridge: %+v, %v", l, err)
		}
		addrs, err := n.Addresses(ctx, nil, "tbr4")
		var global []string
		for _, a := range addrs {
			if !a.Addr().IsLinkLocalUnicast() {
				global = append(global, a.String())
			}
		}
		if d := cmp.Diff([]string{"10.22.0.1/16", "fd00:22::1/64"}, global); d != "" || err != nil {
			t.Errorf("addresses: %s%v", d, err)
		}
		if err := n.Undo(ctx, netops.SharedInverses(shared), nil); err != nil {
			t.Fatal(err)
		}
		run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0")
		// The tables remain until uninstall, so exclude them from the
		// comparison.
		if d := cmp.Diff(withoutNFT(before), withoutNFT(netopstest.Snapshot(t))); d != "" {
			t.Fatalf("after SharedInverses (-before +after):\n%s", d)
		}
		if els, err := n.Elements(ctx, "masq4"); err != nil || len(els) != 0 {
			t.Errorf("elements left: %v, %v", els, err)
		}
	}
}

func withoutNFT(snapshot string) string {
	var b strings.Builder
	for line := range strings.Lines(snapshot) {
		if !strings.HasPrefix(line, "nft") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestLinkCreatedBetweenPlanAndApply creates a link with the shared bridge's name
// between Plan and Apply. A bridge is used, but not labelled, so that cnibox
// never deletes it. A link of another kind is refused.
func TestLinkCreatedBetweenPlanAndApply(t *testing.T) {
	ctx := context.Background()
	n := newNet(t, nil)
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Shared: true, Name: "tbr5", Kind: "bridge", Up: true, Alias: "cnibox:shared"},
		&netops.Addr{In: netops.Host, Shared: true, Link: "tbr5", Address: netip.MustParsePrefix("10.5.0.1/24")},
	}}
	plan, err := n.Plan(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "link", "add", "tbr5", "type", "bridge")
	if err := n.Apply(ctx, plan, nil); err != nil {
		t.Fatal(err)
	}
	if l, err := n.Link(ctx, nil, "tbr5"); err != nil || l.Alias != "" || !l.Up {
		t.Errorf("link: %+v, %v, want it up and without an alias", l, err)
	}
	if err := n.Undo(ctx, netops.SharedInverses(spec), nil); err != nil {
		t.Error(err)
	}
	if _, err := n.Link(ctx, nil, "tbr5"); err != nil {
		t.Errorf("the other program's bridge: %v", err)
	}
	run(t, "ip", "link", "del", "tbr5")
	run(t, "ip", "link", "add", "tbr5", "type", "veth", "peer", "name", "tbr5p")
	if err := n.Apply(ctx, plan, nil); err == nil || !strings.Contains(err.Error(), `bridge "tbr5" is a link of kind "veth"`) {
		t.Errorf("Apply: %v", err)
	}
	run(t, "ip", "link", "del", "tbr5")
}

// TestManyRoutesOfOtherLink reads one link's routes beside 10,000 routes of
// another link.
func TestManyRoutesOfOtherLink(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	inside(t, box, "ip", "link", "add", "many", "up", "type", "bridge")
	inside(t, box, "ip", "link", "add", "eth0", "up", "type", "bridge")
	var s netops.Spec
	for i := range 1000 {
		s.Add(&netops.Route{In: netops.Container, Link: "many", Dst: netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", i/250, i%250))})
	}
	s.Add(&netops.Route{In: netops.Container, Link: "eth0", Dst: netip.MustParsePrefix("192.0.2.0/24"), Table: 1000})
	if err := n.Ensure(ctx, s, ns); err != nil {
		t.Fatal(err)
	}
	all, err := n.Routes(ctx, ns, 0)
	mainTable, err2 := n.Routes(ctx, ns, 254)
	if err != nil || err2 != nil || len(all)-len(mainTable) != 1 || len(mainTable) < 1000 {
		t.Errorf("Routes: %d in all, %d in main, %v, %v", len(all), len(mainTable), err, err2)
	}
	if diffs, err := n.Verify(ctx, s, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %d differences, %v", len(diffs), err)
	}
	if _, err := n.DefaultRouteLink(ctx, ns); err == nil {
		t.Error("DefaultRouteLink without a default route: no error")
	}
	inside(t, box, "ip", "address", "add", "192.0.2.2/24", "dev", "eth0")
	inside(t, box, "ip", "route", "add", "default", "via", "192.0.2.1", "metric", "5")
	inside(t, box, "ip", "route", "add", "default", "dev", "many", "metric", "9")
	if l, err := n.DefaultRouteLink(ctx, ns); err != nil || l != "eth0" {
		t.Errorf("DefaultRouteLink: %q, %v", l, err)
	}
}

// TestPortVLANs needs a bridge that filters VLANs.
func TestPortVLANs(t *testing.T) {
	netopstest.NeedVLANFiltering(t)
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	var shared netops.Spec
	shared.Add(
		&netops.Link{In: netops.Host, Shared: true, Name: "tbr6", Kind: "bridge", Up: true, Bridge: &netops.Bridge{VLANFiltering: true}},
		&netops.Link{
			In: netops.Host, Shared: true, Name: "tbr6.7", Kind: "veth", Up: true,
			Peer: &netops.Peer{In: netops.Host, Name: "tgw", Up: true, Master: "tbr6"},
		},
		&netops.PortVLANs{In: netops.Host, SharedPort: true, Link: "tgw", VLANs: []netops.VLAN{{ID: 7, PVID: true, Untagged: true}}},
	)
	defer clean(t, shared)
	spec := netops.Spec{Objects: shared.Objects}
	port := &netops.PortVLANs{In: netops.Host, Link: "vth6", VLANs: []netops.VLAN{{ID: 100, PVID: true, Untagged: true}, {ID: 200, End: 4000}, {ID: 150}}}
	spec.Add(&netops.Link{
		In: netops.Host, Name: "vth6", Kind: "veth", Up: true, Master: "tbr6", Alias: testLabel,
		Peer: &netops.Peer{In: netops.Container, Name: "eth0"},
	}, port)
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	out := strings.Join(strings.Fields(run(t, "bridge", "vlan", "show", "dev", "vth6")), " ")
	if !strings.HasSuffix(out, "vth6 100 PVID Egress Untagged 150 200-4000") && !strings.Contains(out, "vth6 100 PVID Egress Untagged 150 200") {
		t.Errorf("bridge vlan show: %s", out)
	}
	run(t, "bridge", "vlan", "add", "dev", "vth6", "vid", "1")
	run(t, "bridge", "vlan", "del", "dev", "vth6", "vid", "150")
	diffs, err := n.Verify(ctx, spec, ns)
	if err != nil || len(diffs) != 1 || !strings.Contains(diffs[0].Have, "1, 100 pvid untagged, 200-4000") {
		t.Errorf("Verify after tampering: %v, %v", diffs, err)
	}
	keep := *port
	keep.KeepDefault = true
	set, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{&keep}}, ns)
	if err != nil || len(set.Changes) != 1 || set.Changes[0].Undo == nil {
		t.Fatalf("Plan: %s, %v", lines(set.Changes), err)
	}
	if err := n.Apply(ctx, set, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, netops.Spec{Objects: []netops.Object{&keep}}, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify with the default VLAN: %v, %v", diffs, err)
	}
	if err := n.Undo(ctx, set.Changes, ns); err != nil {
		t.Fatal(err)
	}
	if again, err := n.Verify(ctx, spec, ns); err != nil || cmp.Diff(diffs[0].Have, again[0].Have) != "" {
		t.Errorf("after Undo: %v, %v", again, err)
	}
	self := &netops.PortVLANs{In: netops.Host, Link: "tbr6", Self: true, KeepDefault: true, VLANs: []netops.VLAN{{ID: 9}}}
	selfSpec := netops.Spec{Objects: []netops.Object{self}}
	if err := n.Ensure(ctx, selfSpec, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, selfSpec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify the bridge itself: %v, %v", diffs, err)
	}
	if err := n.Undo(ctx, plan.Changes, ns); err != nil {
		t.Fatal(err)
	}
}

// TestNoVLANFiltering tests a kernel whose bridges cannot filter VLANs.
func TestNoVLANFiltering(t *testing.T) {
	ctx := context.Background()
	n := newNet(t, nil)
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Shared: true, Name: "tbr7", Kind: "bridge", Bridge: &netops.Bridge{VLANFiltering: true}},
	}}
	defer clean(t, spec)
	err := n.Ensure(ctx, spec, nil)
	if err != nil && !strings.Contains(err.Error(), netops.ErrNotSupported.Error()) {
		t.Errorf("Ensure: %v, want ErrNotSupported", err)
	}
}
