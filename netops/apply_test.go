package netops_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

const testLabel = "cnibox:0123456789abcdef"

// wanted returns the Spec of a bridge attachment with both address families.
func wanted(bridge, host string) netops.Spec {
	const ct, eth0 = netops.Container, "eth0"
	var s netops.Spec
	s.Add(
		&netops.Link{In: netops.Host, Shared: true, Name: bridge, Kind: "bridge", MAC: "02:00:00:00:00:99", Up: true, Alias: "cnibox:shared"},
		&netops.Sysctl{In: netops.Host, Shared: true, Optional: true, Key: "net/ipv6/conf/" + bridge + "/accept_ra", Value: "0"},
		&netops.Addr{In: netops.Host, Shared: true, Link: bridge, Address: netip.MustParsePrefix("10.22.0.1/16"), Sole: true},
		&netops.Addr{In: netops.Host, Shared: true, Link: bridge, Address: netip.MustParsePrefix("fd00:22::1/64"), Sole: true},
		&netops.Sysctl{In: netops.Host, Shared: true, Key: "net/ipv4/ip_forward", Value: "1"},
		&netops.Element{Shared: true, Set: "masq4", Key: []string{bridge, "10.22.0.0/16"}, Label: "cnibox:shared net"},
		&netops.Link{
			In: netops.Host, Name: host, Kind: "veth", MAC: "02:00:00:00:00:01", MTU: 1400, Up: true,
			Alias: testLabel + " 10.22.0.2/16", Master: bridge, Port: &netops.Port{Hairpin: true, Isolated: true},
			Peer: &netops.Peer{In: ct, Name: eth0, MAC: "02:00:00:00:00:02", MTU: 1400},
		},
		&netops.Element{Set: "macguard_pairs", Key: []string{host, "02:00:00:00:00:02"}, Label: testLabel},
		&netops.Sysctl{In: ct, Key: "net/ipv6/conf/eth0/accept_dad", Value: "0", Optional: true},
		&netops.Sysctl{In: ct, Key: "net/ipv4/conf/eth0/arp_notify", Value: "1"},
		&netops.Addr{In: ct, Link: eth0, Address: netip.MustParsePrefix("10.22.0.2/16")},
		&netops.Addr{In: ct, Link: eth0, Address: netip.MustParsePrefix("fd00:22::2/64")},
		&netops.Link{In: ct, Name: eth0, Up: true},
		&netops.Route{In: ct, Link: eth0, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.22.0.1"), MTU: 1300, AdvMSS: 1200},
		&netops.Route{In: ct, Link: eth0, Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fd00:22::1")},
		&netops.Route{In: ct, Link: eth0, Dst: netip.MustParsePrefix("192.0.2.0/24"), Priority: 50, Table: 1234},
		&netops.Neigh{In: ct, Link: eth0, IP: netip.MustParseAddr("10.22.0.77"), MAC: "02:00:00:00:00:77"},
		&netops.Rule{In: ct, Family: unix.AF_INET, Priority: 100, From: netip.MustParsePrefix("10.22.0.2/32"), Table: 1234},
	)
	return s
}

func newNet(t testing.TB, probe netops.Probe) *netops.Net {
	t.Helper()
	n := netops.New(netops.Options{Probe: probe})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func open(t testing.TB, n *netops.Net, ns *netopstest.NS) *netops.Namespace {
	t.Helper()
	h, err := n.OpenNamespace(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// clean removes the objects of the specs, also the shared ones, so that no test depends
// on another.
func clean(t testing.TB, specs ...netops.Spec) {
	t.Helper()
	n := netops.New(netops.Options{})
	defer n.Close()
	for _, s := range specs {
		if err := n.Remove(context.Background(), s, nil); err != nil {
			t.Error(err)
		}
		if err := n.Undo(context.Background(), netops.SharedInverses(s), nil); err != nil {
			t.Error(err)
		}
	}
	run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0")
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// inside runs a program in the network namespace ns.
func inside(t testing.TB, ns *netopstest.NS, args ...string) string {
	t.Helper()
	return run(t, append([]string{"nsenter", "--net=" + ns.Path()}, args...)...)
}

func TestEnsureMakesWhatVerifyWants(t *testing.T) {
	ctx := context.Background()
	spec := wanted("tbr0", "vth0")
	n, box := newNet(t, nil), netopstest.New(t)
	defer clean(t, spec)
	ns := open(t, n, box)
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	// Check at once: with duplicate address detection the address would be tentative for a
	// second. The kernel adds the link-local address later, when its worker has seen the carrier,
	// and that one is tentative until the worker runs once more.
	out := inside(t, box, "ip", "-6", "addr", "show", "scope", "global")
	if strings.Contains(out, "tentative") || !strings.Contains(out, "inet6 fd00:22::2/64 scope global") {
		t.Errorf("addresses right after Apply:\n%s", out)
	}
	diffs, err := n.Verify(ctx, spec, ns)
	if err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	if _, err := n.Plan(ctx, spec, ns); !errors.Is(err, netops.ErrExists) {
		t.Errorf("second Plan: %v, want ErrExists", err)
	}
	l, err := n.Link(ctx, nil, "vth0")
	if err != nil {
		t.Fatal(err)
	}
	want := netops.LinkInfo{
		Name: "vth0", Kind: "veth", MAC: "02:00:00:00:00:01", MTU: 1400, Up: true, OperUp: true, Running: true,
		Alias: testLabel + " 10.22.0.2/16", Master: "tbr0", PeerElsewhere: true, Hairpin: true, Isolated: true,
	}
	l.Index, l.MasterIndex, l.PeerIndex = 0, 0, 0
	if d := cmp.Diff(want, l); d != "" {
		t.Errorf("Link (-want +got):\n%s", d)
	}
	if out := inside(t, box, "ip", "route"); !strings.Contains(out, "default via 10.22.0.1 dev eth0 mtu 1300 advmss 1200") {
		t.Errorf("routes:\n%s", out)
	}
	if err := n.Undo(ctx, plan.Changes, ns); err != nil {
		t.Fatal(err)
	}
	if err := n.Undo(ctx, plan.Changes, nil); err != nil {
		t.Errorf("second Undo: %v", err)
	}
	if _, err := n.Link(ctx, nil, "vth0"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("Link after Undo: %v", err)
	}
	if _, err := n.Link(ctx, nil, "tbr0"); err != nil {
		t.Errorf("the shared bridge after Undo: %v", err)
	}
}

// TestFailingStepLeavesNothing makes each step fail in turn. Apply must undo the others.
func TestFailingStepLeavesNothing(t *testing.T) {
	ctx := context.Background()
	spec := wanted("tbr1", "vth1")
	defer clean(t, spec)
	shared := newNet(t, nil)
	first := netopstest.New(t)
	// Shared objects stay after a failure. Make them first, so that the snapshots are equal.
	var base netops.Spec
	for _, o := range spec.Objects {
		if o.IsShared() {
			base.Add(o)
		}
	}
	if err := shared.Ensure(ctx, base, open(t, shared, first)); err != nil {
		t.Fatal(err)
	}
	// The bridge guard's table stays too after its first use.
	guard := netops.Spec{Objects: []netops.Object{&netops.Element{Set: "macguard_ports", Key: []string{"other0"}, Label: "other"}}}
	if err := shared.Ensure(ctx, guard, nil); err != nil {
		t.Fatal(err)
	}
	defer clean(t, guard)
	for i := 1; ; i++ {
		probe := &netopstest.FailNth{N: i}
		n, box := newNet(t, probe), netopstest.New(t)
		ns := open(t, n, box)
		plan, err := n.Plan(ctx, spec, ns)
		if err != nil {
			t.Fatal(err)
		}
		before := netopstest.Snapshot(t) + box.Snapshot(t)
		err = n.Apply(ctx, plan, ns)
		if err == nil {
			if i <= len(plan.Changes) {
				t.Fatalf("step %d of %d did not fail", i, len(plan.Changes))
			}
			if err := shared.Undo(ctx, plan.Changes, ns); err != nil {
				t.Fatal(err)
			}
			break
		}
		if !errors.Is(err, netopstest.ErrProbe) {
			t.Fatalf("step %d: %v", i, err)
		}
		if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
			t.Errorf("after failing step %d, %v (-before +after):\n%s", i, err, d)
		}
	}
}

// TestRefusalWithinOneWrite makes the kernel refuse a request in the middle of a write.
// The kernel still executes the requests after it, and Apply must undo them.
func TestRefusalWithinOneWrite(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	const ct = netops.Container
	lo := netops.Spec{Objects: []netops.Object{&netops.Link{In: ct, Name: "lo", Up: true}}}
	if err := n.Ensure(ctx, lo, ns); err != nil {
		t.Fatal(err)
	}
	before := box.Snapshot(t)
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Addr{In: ct, Link: "lo", Address: netip.MustParsePrefix("10.9.0.1/24")},
		&netops.Route{In: ct, Link: "lo", Dst: netip.MustParsePrefix("10.10.0.0/16"), Via: netip.MustParseAddr("172.31.0.1")},
		&netops.Addr{In: ct, Link: "lo", Address: netip.MustParsePrefix("10.9.1.1/24")},
		&netops.Link{In: ct, Name: "lo", MTU: 1280},
	}}
	err := n.Ensure(ctx, spec, ns)
	if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "route 10.10.0.0/16 via 172.31.0.1") {
		t.Errorf("Ensure: %v, want the route refused", err)
	}
	if d := cmp.Diff(before, box.Snapshot(t)); d != "" {
		t.Errorf("after a refusal (-before +after):\n%s", d)
	}
}

func TestNamesTaken(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	veth := func(host string) netops.Spec {
		return netops.Spec{Objects: []netops.Object{&netops.Link{
			In: netops.Host, Name: host, Kind: "veth", Alias: testLabel,
			Peer: &netops.Peer{In: netops.Container, Name: "eth0"},
		}}}
	}
	early, err := n.Plan(ctx, veth("vtb"), ns)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "link", "add", "vta", "type", "veth", "peer", "name", "vtap")
	run(t, "ip", "link", "set", "vta", "alias", "third-party")
	defer run(t, "ip", "link", "del", "vta")
	earlyHost, err := n.Plan(ctx, veth("vtc"), ns)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "link", "set", "vtap", "name", "vtc")
	inside(t, box, "ip", "link", "add", "eth0", "type", "bridge")

	_, inHost := n.Plan(ctx, veth("vta"), ns)
	_, inContainer := n.Plan(ctx, veth("vtb"), ns)
	for _, c := range []struct {
		name, want string
		err        error
	}{
		{"plan, host", `interface "vta" exists already, with the alias "third-party"`, inHost},
		{"plan, container", `interface "eth0" exists already in the container's namespace`, inContainer},
		{"apply, container", `interface "eth0" exists already in the container's namespace`, n.Apply(ctx, early, ns)},
		{"apply, host", `interface "vtc" exists already`, n.Apply(ctx, earlyHost, ns)},
	} {
		if !errors.Is(c.err, netops.ErrExists) || c.err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.name, c.err, c.want)
		}
	}
	if out := run(t, "ip", "-d", "link", "show", "vta"); !strings.Contains(out, "alias third-party") {
		t.Errorf("the other program's link was changed: %s", out)
	}
	if out := run(t, "ip", "link"); strings.Contains(out, "vtb") || strings.Contains(out, testLabel) {
		t.Errorf("left behind: %s", out)
	}
}

func TestUndoKeepsOtherProgramsLinks(t *testing.T) {
	ctx := context.Background()
	n := newNet(t, nil)
	run(t, "ip", "link", "add", "vts", "type", "veth", "peer", "name", "vtsp")
	defer run(t, "ip", "link", "del", "vts")
	for _, alias := range []string{"", "cnibox:ffffffffffffffff", "cnibox:0123456789abcdef0", "third-party's"} {
		run(t, "ip", "link", "set", "vts", "alias", alias)
		l := &netops.Link{In: netops.Host, Name: "vts", Kind: "veth", Alias: testLabel + " text"}
		if err := n.Remove(ctx, netops.Spec{Objects: []netops.Object{l}}, nil); err != nil {
			t.Errorf("Remove: %v", err)
		}
		if _, err := n.Link(ctx, nil, "vts"); err != nil {
			t.Fatalf("a link with the alias %q was deleted", alias)
		}
	}
	l := &netops.Link{In: netops.Host, Name: "vts", Kind: "bridge"}
	if err := n.Remove(ctx, netops.Spec{Objects: []netops.Object{l}}, nil); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := n.Link(ctx, nil, "vts"); err != nil {
		t.Error("a veth was deleted as a bridge")
	}
}

// TestTwoAttachmentsOfOneContainer makes two attachments that each have a default route.
// Both use the same bridge, which the first one makes.
func TestTwoAttachmentsOfOneContainer(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	spec := func(host, name, address, via string) netops.Spec {
		const ct = netops.Container
		return netops.Spec{Objects: []netops.Object{
			&netops.Link{In: netops.Host, Shared: true, Name: "tbra", Kind: "bridge", Up: true},
			&netops.Link{
				In: netops.Host, Name: host, Kind: "veth", Up: true, Alias: testLabel, Master: "tbra",
				Peer: &netops.Peer{In: ct, Name: name},
			},
			&netops.Addr{In: ct, Link: name, Address: netip.MustParsePrefix(address)},
			&netops.Addr{In: ct, Link: name, Address: netip.MustParsePrefix("fd00::" + via[3:4] + "/64")},
			&netops.Link{In: ct, Name: name, Up: true},
			&netops.Route{In: ct, Link: name, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr(via)},
		}}
	}
	one, two := spec("vtx1", "eth0", "10.1.0.2/24", "10.1.0.1"), spec("vtx2", "net1", "10.2.0.2/24", "10.2.0.1")
	defer clean(t, one, two)
	for _, s := range []netops.Spec{one, two} {
		if err := n.Ensure(ctx, s, ns); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []netops.Spec{one, two} {
		if diffs, err := n.Verify(ctx, s, ns); err != nil || len(diffs) != 0 {
			t.Errorf("Verify: %v, %v", diffs, err)
		}
	}
	if out := inside(t, box, "ip", "-6", "address", "show", "scope", "global"); strings.Count(out, " nodad") != 2 || strings.Contains(out, "tentative") {
		t.Errorf("addresses: %s", out)
	}
}

// TestApplyMasterChanged applies a plan for a bridge port after the bridge was deleted,
// or deleted and made again. A later plan does not change the earlier one.
func TestApplyMasterChanged(t *testing.T) {
	ctx := context.Background()
	bridge := netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Host, Shared: true, Name: "brmoved", Kind: "bridge"}}}
	veth := &netops.Link{
		In: netops.Host, Name: "vethmoved", Kind: "veth", Master: "brmoved", Alias: testLabel,
		Peer: &netops.Peer{In: netops.Container, Name: "eth0"},
	}
	port := netops.Spec{Objects: append(bridge.Objects, veth)}
	for name, test := range map[string]struct {
		again, planned bool
		want           error
	}{
		"gone":                  {false, false, netops.ErrNotExist},
		"deleted and recreated": {true, false, netops.ErrBusy},
		"planned once more":     {true, true, netops.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t, bridge)
			t.Cleanup(func() { clean(t, bridge) })
			n, other, box := newNet(t, nil), newNet(t, nil), netopstest.New(t)
			ns := open(t, n, box)
			if err := n.Ensure(ctx, bridge, nil); err != nil {
				t.Fatal(err)
			}
			plan, err := n.Plan(ctx, port, ns)
			if err != nil {
				t.Fatal(err)
			}
			if err := other.Undo(ctx, netops.SharedInverses(bridge), nil); err != nil {
				t.Fatal(err)
			}
			if test.again {
				// Use ip(8): a bridge that cnibox makes has the same index again.
				if out, err := exec.Command("ip", "link", "add", "brmoved", "type", "bridge").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			if test.planned {
				if _, err := n.Plan(ctx, port, ns); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.Apply(ctx, plan, ns); !errors.Is(err, test.want) || !strings.Contains(err.Error(), "brmoved") {
				t.Errorf("Apply: %v, not %v", err, test.want)
			}
			if _, err := n.Link(ctx, nil, veth.Name); !errors.Is(err, netops.ErrNotExist) {
				t.Errorf("the port is left: %v", err)
			}
			if err := errors.Join(n.Ensure(ctx, port, ns), n.Remove(ctx, port, ns)); err != nil {
				t.Errorf("once more: %v", err)
			}
		})
	}
}
