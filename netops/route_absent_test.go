package netops_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// absentNS creates a namespace with a link that has an address of each family,
// and routes.
func absentNS(t *testing.T) *netopstest.NS {
	t.Helper()
	box := netopstest.New(t)
	for _, c := range []string{
		"link add name eth0 address 02:00:00:00:00:05 type bridge", "link set eth0 up",
		"address add 10.1.0.2/24 dev eth0", "address add fd00:1::2/64 dev eth0 nodad",
		"route add default via 10.1.0.1 dev eth0 metric 7 mtu 1300", "-6 route add default via fd00:1::1 dev eth0",
	} {
		inside(t, box, append([]string{"ip"}, strings.Fields(c)...)...)
	}
	return box
}

// routeTables prints the routes of all tables without the flag "linkdown": the
// kernel sets that later by itself, since the bridge of absentNS has no port.
func routeTables(t *testing.T, box *netopstest.NS) string {
	t.Helper()
	routes := inside(t, box, "ip", "-d", "route", "show", "table", "all", "type", "unicast") +
		inside(t, box, "ip", "-d", "-6", "route", "show", "table", "all", "type", "unicast", "root", "fd00::/8") +
		inside(t, box, "ip", "-d", "-6", "route", "show", "default")
	return strings.ReplaceAll(routes, " linkdown", "")
}

// outOfMain moves the routes of eth0 from the main table to table 100.
func outOfMain() netops.Spec {
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	const ct, eth0 = netops.Container, "eth0"
	return netops.Spec{Objects: []netops.Object{
		&netops.Route{In: ct, Link: eth0, Dst: p("10.1.0.0/24"), Src: a("10.1.0.2"), Table: 100, Protocol: 2},
		&netops.Route{In: ct, Link: eth0, Dst: p("0.0.0.0/0"), Via: a("10.1.0.1"), Table: 100},
		&netops.Route{In: ct, Link: eth0, Dst: p("fd00:1::/64"), Table: 100},
		&netops.Route{In: ct, Link: eth0, Dst: p("0.0.0.0/0"), Via: a("10.1.0.1"), Absent: true},
		&netops.Route{In: ct, Link: eth0, Dst: p("::/0"), Via: a("fd00:1::1"), Absent: true},
		&netops.Route{In: ct, Link: eth0, Dst: p("10.1.0.0/24"), Absent: true},
		&netops.Route{In: ct, Link: eth0, Dst: p("fd00:1::/64"), Absent: true},
		&netops.Route{In: ct, Link: eth0, Dst: p("fd00:1::/64"), Src: a("fd00:1::2"), Priority: 256},
		&netops.Route{In: ct, Link: eth0, Dst: p("10.9.0.0/24"), Absent: true},
	}}
}

// TestRouteAbsent moves routes out of a table and back.
func TestRouteAbsent(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), absentNS(t)
	ns := open(t, n, box)
	before, spec := routeTables(t, box), outOfMain()
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	const want = `add route 10.1.0.0/24 dev eth0 netns container src 10.1.0.2 table 100 proto 2
  <- del route 10.1.0.0/24 dev eth0 netns container src 10.1.0.2 table 100 proto 2
add route default via 10.1.0.1 dev eth0 netns container table 100
  <- del route default via 10.1.0.1 dev eth0 netns container table 100
add route fd00:1::/64 dev eth0 netns container table 100
  <- del route fd00:1::/64 dev eth0 netns container table 100
del route default via 10.1.0.1 dev eth0 netns container metric 7 table 254 proto 3 scope 0 mtu 1300
  <- add route default via 10.1.0.1 dev eth0 netns container metric 7 table 254 proto 3 scope 0 mtu 1300
del route default via fd00:1::1 dev eth0 netns container inet6 metric 1024 table 254 proto 3 scope 0
  <- add route default via fd00:1::1 dev eth0 netns container inet6 metric 1024 table 254 proto 3 scope 0
del route 10.1.0.0/24 dev eth0 netns container src 10.1.0.2 table 254 proto 2 scope 253
  <- add route 10.1.0.0/24 dev eth0 netns container src 10.1.0.2 table 254 proto 2 scope 253
del route fd00:1::/64 dev eth0 netns container metric 256 table 254 proto 2 scope 0
  <- add route fd00:1::/64 dev eth0 netns container metric 256 table 254 proto 2 scope 0
add route fd00:1::/64 dev eth0 netns container src fd00:1::2 metric 256
  <- del route fd00:1::/64 dev eth0 netns container src fd00:1::2 metric 256
`
	if d := cmp.Diff(want, lines(plan.Changes)); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 8 {
		t.Errorf("Verify before: %v, %v", diffs, err)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 1 || diffs[0].Object != spec.Objects[6] {
		t.Errorf("Verify: %v, %v; want the IPv6 subnet, which is back with a source address", diffs, err)
	}
	raw, err := json.Marshal(plan.Changes)
	if err != nil {
		t.Fatal(err)
	}
	var stored []netops.Change
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Undo(ctx, stored, ns); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(before, routeTables(t, box)); d != "" {
			t.Errorf("after Undo (-before +after):\n%s", d)
		}
	}
	if err := n.Remove(ctx, netops.Spec{Objects: spec.Objects[3:7]}, ns); err != nil || routeTables(t, box) != before {
		t.Errorf("Remove deletes what is to be absent anyway: %v", err)
	}
}

// TestUndoOutdatedRoute runs inverses for routes that are no longer possible, or
// whose link's name belongs to another link.
func TestUndoOutdatedRoute(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct{ name, change string }{
		{"address gone", "address flush dev eth0"},
		{"link down", "link set eth0 down"},
		{"link gone", "link del eth0"},
		{"another link", "link del eth0 && ip link add name eth0 type bridge && ip link set eth0 up && ip address add 10.1.0.9/16 dev eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, box := newNet(t, nil), absentNS(t)
			ns := open(t, n, box)
			plan, err := n.Plan(ctx, outOfMain(), ns)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Apply(ctx, plan, ns); err != nil {
				t.Fatal(err)
			}
			inside(t, box, "sh", "-c", "ip "+c.change)
			if err := n.Undo(ctx, plan.Changes, ns); err != nil {
				t.Errorf("Undo: %v", err)
			}
			all := routeTables(t, box)
			if strings.Contains(all, "table 100") || c.name == "another link" && strings.Contains(all, "via") {
				t.Errorf("left:\n%s", all)
			}
		})
	}
}
