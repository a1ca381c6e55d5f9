package netops_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// ensure plans and applies a Spec, and returns the changes.
func ensure(t *testing.T, n *netops.Net, s netops.Spec, ns *netops.Namespace) []netops.Change {
	t.Helper()
	plan, err := n.Plan(context.Background(), s, ns)
	if err == nil {
		err = n.Apply(context.Background(), plan, ns)
	}
	if err != nil {
		t.Fatal(err)
	}
	return plan.Changes
}

// TestRuleOfHostRoutes checks that the rule is added once and that Verify
// distinguishes it from a rule without MinBits.
func TestRuleOfHostRoutes(t *testing.T) {
	n, ctx := newNet(t, nil), context.Background()
	var s netops.Spec
	for family, bits := range map[int]int{unix.AF_INET: 32, unix.AF_INET6: 128} {
		s.Add(&netops.Rule{In: netops.Host, Shared: true, Family: family, Priority: 512, Table: unix.RT_TABLE_MAIN, MinBits: bits, Protocol: netops.PolicyProtocol})
	}
	t.Cleanup(func() { clean(t, s) })
	run(t, "ip", "rule", "add", "priority", "512", "lookup", "main")
	t.Cleanup(func() { run(t, "ip", "rule", "del", "priority", "512", "lookup", "main") })
	if d, err := n.Verify(ctx, s, nil); err != nil || len(d) != 2 {
		t.Errorf("before: %v, %v, want both absent", d, err)
	}
	if made := ensure(t, n, s, nil); len(made) != 2 {
		t.Errorf("made %v", made)
	}
	if made := ensure(t, n, s, nil); len(made) != 0 {
		t.Errorf("made again: %v", made)
	}
	if d, err := n.Verify(ctx, s, nil); err != nil || len(d) != 0 {
		t.Errorf("after: %v, %v", d, err)
	}
	for _, c := range []struct{ family, bits string }{{"-4", "31"}, {"-6", "127"}} {
		if have := run(t, "ip", c.family, "rule"); !strings.Contains(have, "512:\tfrom all lookup main suppress_prefixlength "+c.bits+" proto 143") {
			t.Errorf("ip rule has\n%s", have)
		}
	}
	if err := n.Undo(ctx, netops.SharedInverses(s), nil); err != nil {
		t.Fatal(err)
	}
	if d, err := n.Verify(ctx, s, nil); err != nil || len(d) != 2 {
		t.Errorf("after removal: %v, %v, want both absent", d, err)
	}
}

// TestRuleOfAbsentLink deletes an interface that a rule is bound to. The rule
// remains. When a plan creates the interface again, it replaces the rule, and
// the inverse deletes it. While the interface exists, the rule is an error
// because it belongs to another attachment.
func TestRuleOfAbsentLink(t *testing.T) {
	n, ctx := newNet(t, nil), context.Background()
	ns := open(t, n, netopstest.New(t))
	link := &netops.Link{In: netops.Host, Name: "rule0", Kind: "veth", Alias: testLabel, Peer: &netops.Peer{In: netops.Container, Name: "eth0"}}
	rule := &netops.Rule{In: netops.Host, Family: unix.AF_INET, Priority: 1536, From: netip.MustParsePrefix("10.0.0.9/32"), IIF: "rule0", Table: 1537}
	both := netops.Spec{Objects: []netops.Object{link, rule}}
	t.Cleanup(func() { clean(t, both) })
	ensure(t, n, both, ns)
	if _, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{rule}}, ns); err == nil {
		t.Error("a rule that is there is planned again")
	}
	run(t, "ip", "link", "del", "rule0")
	if d, err := n.Verify(ctx, netops.Spec{Objects: []netops.Object{rule}}, ns); err != nil || len(d) != 0 {
		t.Fatalf("the rule went with its interface: %v, %v", d, err)
	}
	made := ensure(t, n, both, ns)
	if err := n.Undo(ctx, made, ns); err != nil {
		t.Fatal(err)
	}
	if have := run(t, "ip", "rule"); strings.Contains(have, "10.0.0.9") {
		t.Errorf("left:\n%s", have)
	}
}
