package netops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// shaped returns the Spec that shapes the traffic of tq0 in both directions with
// the ifb tq1.
func shaped() netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Qdisc{In: netops.Host, Link: "tq0", Kind: "tbf", TBF: &netops.TBF{Rate: 125_000, Burst: 1000, Limit: 4125}},
		&netops.Link{In: netops.Host, Name: "tq1", Kind: "ifb", MTU: 1400, Up: true, Alias: testLabel + " pods/eth0/c1"},
		&netops.Qdisc{In: netops.Host, Link: "tq1", Kind: "tbf", TBF: &netops.TBF{Rate: 8 << 30, Burst: 4<<30 - 2, Limit: 4<<30 - 1}},
		&netops.Qdisc{In: netops.Host, Link: "tq0", Kind: "clsact"},
		&netops.Redirect{In: netops.Host, Link: "tq0", To: "tq1"},
	}}
}

// tq creates the link tq0 for one test.
func tq(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "add", "tq0", "type", "veth", "peer", "name", "tq2")
	t.Cleanup(func() {
		for line := range strings.Lines(run(t, "ip", "-o", "link", "show")) {
			for _, name := range []string{"tq0", "tq1"} {
				if strings.Contains(line, ": "+name+":") || strings.Contains(line, ": "+name+"@") {
					run(t, "ip", "link", "del", name)
				}
			}
		}
	})
}

// traffic returns the qdiscs and filters of tq0 as tc prints them, and the
// number of links named tq1.
func traffic(t *testing.T) string {
	t.Helper()
	return run(t, "tc", "qdisc", "show", "dev", "tq0") + run(t, "tc", "filter", "show", "dev", "tq0", "ingress") +
		fmt.Sprint(strings.Count(run(t, "ip", "-o", "link", "show", "type", "ifb"), "tq1"))
}

func tc(t *testing.T, args string) {
	t.Helper()
	run(t, append([]string{"tc"}, strings.Fields(args)...)...)
}

// TestQdisc applies, verifies and reverts traffic shaping, and compares the
// output of tc.
func TestQdisc(t *testing.T) {
	ctx := context.Background()
	tq(t)
	n, before := newNet(t, nil), traffic(t)
	plan, err := n.Plan(ctx, shaped(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, nil); err != nil {
		t.Fatal(err)
	}
	have := traffic(t) + run(t, "tc", "qdisc", "show", "dev", "tq1")
	for _, want := range []string{
		"qdisc tbf cb1: root", "rate 1Mbit burst 1000b lat 25ms", "qdisc clsact ffff: parent ffff:fff1",
		"pref 65000 u32", "mirred (Egress Redirect to device tq1) stolen", "rate 68719Mbit burst",
	} {
		if !strings.Contains(have, want) {
			t.Errorf("%q is not in\n%s", want, have)
		}
	}
	if diffs, err := n.Verify(ctx, shaped(), nil); err != nil || len(diffs) > 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	if _, err := n.Plan(ctx, netops.Spec{Objects: shaped().Objects[:1]}, nil); !errors.Is(err, netops.ErrExists) || !strings.Contains(err.Error(), "tbf cb1:") {
		t.Errorf("a second tbf: %v", err)
	}
	undo := func() {
		if err := n.Undo(ctx, recorded(t, plan.Changes), nil); err != nil {
			t.Error(err)
		}
	}
	undo()
	if have := traffic(t); have != before {
		t.Errorf("after Undo:\n%swant\n%s", have, before)
	}
	undo()
	run(t, "ip", "link", "del", "tq0")
	undo()
}

// recorded encodes and decodes plan.Changes as the store does.
func recorded(t *testing.T, changes []netops.Change) (back []netops.Change) {
	t.Helper()
	raw, err := json.Marshal(changes)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	return back
}

// TestQdiscTampered changes one property at a time and restores it.
func TestQdiscTampered(t *testing.T) {
	ctx := context.Background()
	tq(t)
	n, spec := newNet(t, nil), shaped()
	if err := n.Ensure(ctx, spec, nil); err != nil {
		t.Fatal(err)
	}
	const root = "qdisc change dev tq0 root handle cb1: tbf "
	for _, c := range []struct{ tamper, back, want string }{
		{root + "rate 2Mbit burst 1000 limit 4125", root + "rate 1Mbit burst 1000 limit 4125", "rate 1Mbit: rate 2Mbit"},
		{root + "rate 1Mbit burst 1100 limit 4125", root + "rate 1Mbit burst 1000 limit 4125", "burst 1000b: burst 1100b"},
		{root + "rate 1Mbit burst 1000 limit 5000", root + "rate 1Mbit burst 1000 limit 4125", "limit 4125b: limit 5000b"},
		{"qdisc del dev tq1 root", "qdisc add dev tq1 root handle cb1: tbf rate 8589934592bps burst 4294967294 limit 4294967295", "present: absent"},
		{"qdisc replace dev tq1 root bfifo", "qdisc replace dev tq1 root tbf rate 8589934592bps burst 4294967294 limit 4294967295", "kind tbf: kind bfifo"},
		{"filter del dev tq0 ingress", "filter add dev tq0 ingress pref 1 protocol all u32 match u32 0 0 action mirred egress redirect dev tq1", "present: absent"},
		{"qdisc del dev tq0 clsact", "", "present: absent"},
	} {
		tc(t, c.tamper)
		if diffs := differences(t, n, spec); !strings.Contains(diffs, c.want+"\n") {
			t.Errorf("%s: Verify tells %q, want %s", c.tamper, diffs, c.want)
		}
		if c.back == "" {
			continue
		}
		tc(t, c.back)
		if diffs := differences(t, n, spec); diffs != "" {
			t.Errorf("%s: Verify tells %q", c.back, diffs)
		}
	}
	run(t, "ip", "link", "del", "tq0")
	run(t, "ip", "link", "del", "tq1")
	if diffs := differences(t, n, spec); strings.Count(diffs, "present: absent") != len(spec.Objects) {
		t.Errorf("without the links: %q", diffs)
	}
}

func differences(t *testing.T, n *netops.Net, spec netops.Spec) string {
	t.Helper()
	diffs, err := n.Verify(context.Background(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, d := range diffs {
		fmt.Fprintf(&b, "%s: %s\n", d.Want, d.Have)
	}
	return b.String()
}

// TestQdiscBesideOthers checks that qdiscs and filters of other programs are not
// changed.
func TestQdiscBesideOthers(t *testing.T) {
	const drop = "filter add dev tq0 ingress pref 100 protocol ip u32 match ip dst 192.0.2.1/32 action mirred egress mirror dev tq2"
	ctx := context.Background()
	for _, c := range []struct {
		name          string
		before, after []string
		// whole reports whether Undo restores the initial state.
		whole bool
		left  string
	}{
		{name: "clsact", before: []string{"qdisc add dev tq0 clsact"}, whole: true},
		{name: "clsact with a filter", before: []string{"qdisc add dev tq0 clsact", drop}, whole: true},
		{name: "ingress", before: []string{"qdisc add dev tq0 ingress", drop}, whole: true},
		{name: "filter of ours' preference", before: []string{"qdisc add dev tq0 clsact", strings.Replace(drop, "pref 100 protocol ip", "pref 65000 protocol all", 1)}, whole: true},
		{name: "redirect of ours' preference", before: []string{"qdisc add dev tq0 clsact", strings.NewReplacer("pref 100 protocol ip", "pref 65000 protocol all", "mirror", "redirect").Replace(drop)}, whole: true},
		{name: "filter on our clsact", after: []string{drop}, left: "pref 100 u32"},
		{name: "egress filter on our clsact", after: []string{strings.Replace(drop, "ingress", "egress", 1)}, left: "clsact"},
		{name: "root replaced", after: []string{"qdisc replace dev tq0 root handle 7: tbf rate 3Mbit burst 1000 limit 4000"}, left: "tbf 7:"},
		{name: "clsact replaced", after: []string{"qdisc del dev tq0 clsact", "qdisc add dev tq0 ingress"}, left: "qdisc ingress ffff:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tq(t)
			for _, args := range c.before {
				tc(t, args)
			}
			n, before := newNet(t, nil), traffic(t)
			plan, err := n.Plan(ctx, shaped(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Apply(ctx, plan, nil); err != nil {
				t.Fatal(err)
			}
			if diffs := differences(t, n, shaped()); diffs != "" {
				t.Errorf("Verify tells %q", diffs)
			}
			for _, args := range c.after {
				tc(t, args)
			}
			if err := n.Undo(ctx, plan.Changes, nil); err != nil {
				t.Fatal(err)
			}
			have := traffic(t)
			if c.whole && have != before || !strings.Contains(have, c.left) || strings.Contains(have, "tq1") || strings.Contains(have, "cb1:") {
				t.Errorf("after Undo:\n%s\nbefore:\n%s", have, before)
			}
		})
	}
	t.Run("root", func(t *testing.T) {
		tq(t)
		tc(t, "qdisc add dev tq0 root handle 9: tbf rate 3Mbit burst 1000 limit 4000")
		before := traffic(t)
		if err := newNet(t, nil).Ensure(ctx, shaped(), nil); !errors.Is(err, netops.ErrExists) || !strings.Contains(err.Error(), "tbf 9:") {
			t.Errorf("Ensure: %v, want ErrExists", err)
		}
		if have := traffic(t); have != before {
			t.Errorf("after a refused one:\n%s", have)
		}
	})
}

// TestQdiscOfReplacedLink runs the inverses after the link was replaced by another
// program's link with the same name. That link must not be changed.
func TestQdiscOfReplacedLink(t *testing.T) {
	ctx := context.Background()
	tq(t)
	n := newNet(t, nil)
	plan, err := n.Plan(ctx, shaped(), nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "link", "del", "tq0")
	run(t, "ip", "link", "add", "tq0", "type", "veth", "peer", "name", "tq2")
	next := shaped()
	next.Objects[1].(*netops.Link).Alias = "cnibox:fedcba9876543210"
	if err := n.Ensure(ctx, next, nil); err != nil {
		t.Fatal(err)
	}
	before := traffic(t)
	if err := n.Undo(ctx, plan.Changes, nil); err != nil {
		t.Fatal(err)
	}
	if have := traffic(t); have != before || !strings.Contains(have, "cb1:") || !strings.Contains(have, "device tq1") {
		t.Errorf("after Undo of the last owner's:\n%swant\n%s", have, before)
	}
}

// TestQdiscFailures makes each step fail in turn and checks that Apply reverts
// the others.
func TestQdiscFailures(t *testing.T) {
	tq(t)
	before := traffic(t)
	for i := 1; i <= len(shaped().Objects); i++ {
		err := newNet(t, &netopstest.FailNth{N: i}).Ensure(context.Background(), shaped(), nil)
		if !errors.Is(err, netopstest.ErrProbe) {
			t.Fatalf("step %d: %v", i, err)
		}
		if have := traffic(t); have != before {
			t.Errorf("after step %d failed:\n%s", i, have)
		}
	}
}

// TestHostEnd checks that HostEnd returns the veth peer, and not another link
// with the same index.
func TestHostEnd(t *testing.T) {
	ctx := context.Background()
	n, box, third := newNet(t, nil), netopstest.New(t), netopstest.New(t)
	ns := open(t, n, box)
	run(t, "ip", "link", "add", "tq0", "index", "4711", "type", "veth", "peer", "name", "tq2")
	run(t, "ip", "link", "set", "tq2", "netns", box.Path(), "name", "eth0")
	defer run(t, "ip", "link", "del", "tq0")
	l, err := n.HostEnd(ctx, ns, "eth0")
	if err != nil || l.Name != "tq0" || l.Index != 4711 {
		t.Errorf("HostEnd: %+v, %v", l, err)
	}
	// A veth pair between two other containers, with the same two indexes.
	second := netopstest.New(t)
	inside(t, third, "ip", "link", "add", "tq3", "index", "4711", "type", "veth", "peer", "name", "tq4", "index", fmt.Sprint(l.PeerIndex))
	inside(t, third, "ip", "link", "set", "tq4", "netns", second.Path(), "name", "eth1")
	if l, err := n.HostEnd(ctx, open(t, n, second), "eth1"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("HostEnd of a link with its peer in a third namespace: %+v, %v", l, err)
	}
	inside(t, box, "ip", "link", "add", "tq5", "type", "veth", "peer", "name", "tq6")
	inside(t, box, "ip", "link", "add", "tq7", "type", "bridge")
	for _, name := range []string{"tq5", "tq7", "none"} {
		if l, err := n.HostEnd(ctx, ns, name); !errors.Is(err, netops.ErrNotExist) {
			t.Errorf("HostEnd of %s: %+v, %v", name, l, err)
		}
	}
	if _, err := n.HostEnd(ctx, ns, "no name"); !errors.Is(err, netops.ErrInvalid) || errors.Is(err, unix.ENODEV) {
		t.Errorf("HostEnd of no name: %v", err)
	}
}

// TestQdiscText formats objects as tc does, and rejects values that no kernel
// accepts.
func TestQdiscText(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{`{"qdisc":{"in":"host","link":"v","kind":"clsact"}}`, "qdisc clsact dev v"},
		{`{"qdisc":{"in":"container","link":"v","kind":"tbf","tbf":{"rate":125000000,"burst":1048576,"limit":2048}}}`, "qdisc tbf dev v netns container root rate 1Gbit burst 1Mb limit 2Kb"},
		{`{"qdisc":{"in":"host","link":"v","kind":"tbf","tbf":{"rate":1250,"burst":1,"limit":1}}}`, "qdisc tbf dev v root rate 10Kbit burst 1b limit 1b"},
		{`{"qdisc":{"in":"host","link":"v","kind":"tbf","tbf":{"rate":1,"burst":1,"limit":1}}}`, "qdisc tbf dev v root rate 8bit burst 1b limit 1b"},
		{`{"qdisc":{"in":"host","link":"v","kind":"tbf","tbf":{"rate":18446744073709551615,"burst":1,"limit":1}}}`, "qdisc tbf dev v root rate 18446744073709551615bps burst 1b limit 1b"},
		{`{"redirect":{"in":"host","link":"v","to":"w"}}`, "filter dev v ingress pref 65000 u32 action mirred egress redirect dev w"},
		{`{"qdisc":{"in":"host","link":"v","kind":"htb"}}`, ""},
		{`{"qdisc":{"in":"moon","link":"v","kind":"clsact"}}`, ""},
		{`{"qdisc":{"in":"host","link":"v/w","kind":"clsact"}}`, ""},
		{`{"qdisc":{"in":"host","link":"v","kind":"clsact","index":-1}}`, ""},
		{`{"qdisc":{"in":"host","link":"v","kind":"clsact","tbf":{"rate":1,"burst":1,"limit":1}}}`, ""},
		{`{"qdisc":{"in":"host","link":"v","kind":"tbf","tbf":{"rate":0,"burst":1,"limit":1}}}`, ""},
		{`{"qdisc":{"in":"host","link":"v","kind":"tbf","tbf":{"rate":1,"burst":-1,"limit":1}}}`, ""},
		{`{"redirect":{"in":"host","link":"v","to":""}}`, ""},
	} {
		var spec netops.Spec
		err := json.Unmarshal([]byte(`{"objects":[`+c.raw+`]}`), &spec)
		switch {
		case c.want == "":
			if err == nil {
				t.Errorf("%s is taken for %s", c.raw, spec.Objects[0])
			}
		case err != nil:
			t.Errorf("%s: %v", c.raw, err)
		case spec.Objects[0].String() != c.want:
			t.Errorf("%s is %q, want %q", c.raw, spec.Objects[0], c.want)
		}
	}
	tq(t)
	bare := netops.Spec{Objects: []netops.Object{&netops.Qdisc{In: netops.Host, Link: "tq0", Kind: "tbf"}}}
	if err := newNet(t, nil).Ensure(context.Background(), bare, nil); !errors.Is(err, netops.ErrInvalid) {
		t.Errorf("a tbf without a rate: %v", err)
	}
}

// TestQdiscOfFutureLink plans on a link that an earlier plugin creates later,
// while there is no container.
func TestQdiscOfFutureLink(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	plan, err := n.Plan(ctx, shaped(), nil)
	if err != nil || len(plan.Changes) != len(shaped().Objects) {
		t.Errorf("without a container: %d plan.Changes, %v", len(plan.Changes), err)
	}
	if _, err := n.Plan(ctx, shaped(), open(t, n, box)); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("with a container: %v", err)
	}
	if err := n.Ensure(ctx, shaped(), nil); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("Ensure: %v", err)
	}
}
