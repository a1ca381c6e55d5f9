package netops_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// lines formats a plan as text: each change, and its inverse after an arrow.
func lines(changes []netops.Change) string {
	var b strings.Builder
	for _, c := range changes {
		b.WriteString(string(c.Do.Verb) + " " + c.Do.Object.String())
		if c.Undo != nil {
			b.WriteString("\n  <- " + string(c.Undo.Verb) + " " + c.Undo.Object.String())
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestPlanFromNothing(t *testing.T) {
	n := newNet(t, nil)
	spec := wanted("tbr3", "vth3")
	spec.Add(spec.Objects[2]) // a gateway that two addresses have
	plan, err := n.Plan(context.Background(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	const want = `add link tbr3 type bridge address 02:00:00:00:00:99 up alias "cnibox:shared"
set sysctl net/ipv6/conf/tbr3/accept_ra=0
add address 10.22.0.1/16 dev tbr3
add address fd00:22::1/64 dev tbr3 nodad
set sysctl net/ipv4/ip_forward=1
add element masq4 { tbr3 . 10.22.0.0/16 }
add link vth3 type veth address 02:00:00:00:00:01 mtu 1400 master tbr3 hairpin on isolated on up peer name eth0 netns container address 02:00:00:00:00:02 mtu 1400 alias "cnibox:0123456789abcdef 10.22.0.2/16"
  <- del link vth3 type veth alias "cnibox:0123456789abcdef 10.22.0.2/16"
add element macguard_pairs { vth3 . 02:00:00:00:00:02 }
  <- del element macguard_pairs { vth3 . 02:00:00:00:00:02 }
set sysctl net/ipv6/conf/eth0/accept_dad=0 netns container
set sysctl net/ipv4/conf/eth0/arp_notify=1 netns container
add address 10.22.0.2/16 dev eth0 netns container
add address fd00:22::2/64 dev eth0 netns container nodad
set link eth0 netns container up
add route default via 10.22.0.1 dev eth0 netns container mtu 1300 advmss 1200
add route default via fd00:22::1 dev eth0 netns container inet6
add route 192.0.2.0/24 dev eth0 netns container metric 50 table 1234
add neighbour 10.22.0.77 lladdr 02:00:00:00:00:77 dev eth0 netns container
add rule netns container priority 100 from 10.22.0.2/32 table 1234
  <- del rule netns container priority 100 from 10.22.0.2/32 table 1234
`
	if d := cmp.Diff(want, lines(plan.Changes)); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if _, err := n.Link(context.Background(), nil, "tbr3"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("Plan made the bridge: %v", err)
	}
}

// TestPlanOnWhatExists plans objects on existing links. Such objects need
// inverses.
func TestPlanOnWhatExists(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	for _, c := range []string{
		"link add name eth0 address 02:00:00:00:00:05 type bridge", "link add name br1 type bridge",
		"address add 10.1.0.2/24 dev eth0", "address add 10.1.0.3/24 dev eth0",
	} {
		inside(t, box, append([]string{"ip"}, strings.Fields(c)...)...)
	}
	const ct, eth0 = netops.Container, "eth0"
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Sysctl{In: ct, Key: "net/ipv4/conf/eth0/arp_notify", Value: "1"},
		&netops.Sysctl{In: ct, Key: "net/ipv4/conf/eth0/forwarding", Value: "1", Shared: true},
		&netops.Link{In: ct, Name: eth0, Up: true, Promisc: true, MTU: 1400, MAC: "02:00:00:00:00:06", Alias: "mine"},
		&netops.Addr{In: ct, Link: eth0, Address: netip.MustParsePrefix("10.1.0.1/24"), Replace: true},
		&netops.Addr{In: ct, Link: eth0, Address: netip.MustParsePrefix("fd00:1::2/64"), NoPrefixRoute: true},
		&netops.Route{In: ct, Link: eth0, Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("10.1.0.254"), Table: 300},
		&netops.Route{In: ct, Link: eth0, Dst: netip.MustParsePrefix("10.8.0.0/16"), Src: netip.MustParseAddr("10.1.0.1")},
		&netops.Neigh{In: ct, Link: eth0, IP: netip.MustParseAddr("10.1.0.9"), MAC: "02:00:00:00:00:09"},
		&netops.Rule{In: ct, Family: unix.AF_INET6, From: netip.MustParsePrefix("fd00:1::/64"), Mark: 1, OIF: eth0, Table: 300},
	}}
	before := box.Snapshot(t)
	plan, err := n.Plan(ctx, spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	const want = `set sysctl net/ipv4/conf/eth0/arp_notify=1 netns container
  <- set sysctl net/ipv4/conf/eth0/arp_notify=0 netns container
set link eth0 netns container address 02:00:00:00:00:06 mtu 1400 promisc on up alias "mine"
  <- set link eth0 netns container address 02:00:00:00:00:05 mtu 1500 promisc off alias "" down
del address 10.1.0.2/24 dev eth0 netns container
  <- add address 10.1.0.2/24 dev eth0 netns container
del address 10.1.0.3/24 dev eth0 netns container
  <- add address 10.1.0.3/24 dev eth0 netns container
add address 10.1.0.1/24 dev eth0 netns container
  <- del address 10.1.0.1/24 dev eth0 netns container
add address fd00:1::2/64 dev eth0 netns container nodad noprefixroute
  <- del address fd00:1::2/64 dev eth0 netns container nodad noprefixroute
add route 10.9.0.0/16 via 10.1.0.254 dev eth0 netns container table 300
  <- del route 10.9.0.0/16 via 10.1.0.254 dev eth0 netns container table 300
add route 10.8.0.0/16 dev eth0 netns container src 10.1.0.1
  <- del route 10.8.0.0/16 dev eth0 netns container src 10.1.0.1
add neighbour 10.1.0.9 lladdr 02:00:00:00:00:09 dev eth0 netns container
  <- del neighbour 10.1.0.9 lladdr 02:00:00:00:00:09 dev eth0 netns container
add rule inet6 netns container from fd00:1::/64 fwmark 0x1/0xffffffff oif eth0 table 300
  <- del rule inet6 netns container from fd00:1::/64 fwmark 0x1/0xffffffff oif eth0 table 300
`
	run(t, "sysctl", "-qw", "net.ipv4.conf.all.forwarding=0")
	got := strings.Replace(lines(plan.Changes), "set sysctl net/ipv4/conf/eth0/forwarding=1 netns container\n", "", 1)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if err := n.Apply(ctx, plan, ns); err != nil {
		t.Fatal(err)
	}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	// Encode and decode the inverses as the store does.
	raw, err := json.Marshal(plan.Changes)
	if err != nil {
		t.Fatal(err)
	}
	var stored []netops.Change
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(lines(plan.Changes), lines(stored)); d != "" {
		t.Errorf("after JSON (-want +got):\n%s", d)
	}
	if err := n.Undo(ctx, stored, ns); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, box.Snapshot(t)); d != "" {
		t.Errorf("after Undo (-before +after):\n%s", d)
	}
}

func TestPlanConflicts(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	for _, c := range []string{
		"link add name cni0 address 02:00:00:00:00:05 type bridge", "link add name dev0 type veth peer name dev1", "link set cni0 up",
		"address add 10.1.0.2/24 dev cni0", "address add fd00:1::2/64 dev cni0 nodad",
		"neighbour add 10.1.0.9 lladdr 02:00:00:00:00:09 dev cni0", "rule add priority 7 from 10.1.0.0/24 table 9", "route add 10.2.0.0/16 via 10.1.0.1",
	} {
		inside(t, box, append([]string{"ip"}, strings.Fields(c)...)...)
	}
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	const ct, cni0 = netops.Container, "cni0"
	for _, c := range []struct {
		name string
		o    netops.Object
		err  error
		want string
	}{
		{"shared bridge exists", &netops.Link{In: ct, Shared: true, Name: cni0, Kind: "bridge", MAC: "02:00:00:00:00:99", MTU: 1400, Up: true}, nil, ""},
		{"shared bridge down", &netops.Link{In: ct, Shared: true, Name: "dev1", Kind: "veth", Up: true}, nil, "set link dev1 netns container type veth up\n"},
		{"name of another kind", &netops.Link{In: ct, Shared: true, Name: "dev0", Kind: "bridge"}, netops.ErrConflict, `bridge "dev0" is a link of kind "veth", not "bridge"`},
		{"link absent", &netops.Link{In: ct, Name: "none", Up: true}, netops.ErrNotExist, `link "none"`},
		{"other address", &netops.Addr{In: ct, Shared: true, Link: cni0, Address: p("10.1.0.1/24"), Sole: true}, netops.ErrConflict, `bridge "cni0" already has an IP address different from 10.1.0.1/24`},
		{"other subnet, IPv6", &netops.Addr{In: ct, Shared: true, Link: cni0, Address: p("fd00:2::1/64"), Sole: true}, nil, "add address fd00:2::1/64 dev cni0 netns container nodad\n"},
		{"same subnet, IPv6", &netops.Addr{In: ct, Shared: true, Link: cni0, Address: p("fd00:1::1/64"), Sole: true}, netops.ErrConflict, "already has an IP address different from fd00:1::1/64"},
		{"same address", &netops.Addr{In: ct, Shared: true, Link: cni0, Address: p("10.1.0.2/24"), Sole: true}, nil, ""},
		{"same address, not shared", &netops.Addr{In: ct, Link: cni0, Address: p("10.1.0.2/24")}, netops.ErrExists, `address 10.1.0.2/24 on "cni0" exists already`},
		{"same route", &netops.Route{In: ct, Link: cni0, Dst: p("10.2.0.0/16"), Via: a("10.1.0.1")}, netops.ErrExists, "route 10.2.0.0/16 via 10.1.0.1 dev cni0 netns container exists already"},
		{"same route, shared", &netops.Route{In: ct, Shared: true, Link: cni0, Dst: p("10.2.0.0/16"), Via: a("10.1.0.1")}, nil, ""},
		{"same neighbour", &netops.Neigh{In: ct, Link: cni0, IP: a("10.1.0.9"), MAC: "02:00:00:00:00:09"}, netops.ErrExists, "exists already"},
		{"same neighbour, shared", &netops.Neigh{In: ct, Shared: true, Link: cni0, IP: a("10.1.0.9"), MAC: "02:00:00:00:00:09"}, nil, ""},
		{"same rule", &netops.Rule{In: ct, Family: unix.AF_INET, From: p("10.1.0.0/24"), Table: 9}, netops.ErrExists, "exists already"},
		{"same rule, shared", &netops.Rule{In: ct, Shared: true, Family: unix.AF_INET, Priority: 7, From: p("10.1.0.7/24"), Table: 9}, nil, ""},
		{"same setting", &netops.Sysctl{In: ct, Key: "net/ipv4/conf/cni0/arp_notify", Value: "0"}, nil, ""},
		{"no such setting", &netops.Sysctl{In: ct, Key: "net/ipv4/conf/none/arp_notify", Value: "0"}, netops.ErrNotExist, "net/ipv4/conf/none/arp_notify"},
		{"setting outside", &netops.Sysctl{In: ct, Key: "net/../kernel/panic", Value: "0"}, netops.ErrInvalid, "not a path below net/"},
		{"name too long", &netops.Link{In: ct, Name: "a234567890123456", Kind: "bridge"}, netops.ErrInvalid, "interface name"},
		{"name pattern", &netops.Link{In: ct, Name: "eth%d", Kind: "bridge"}, netops.ErrInvalid, "interface name"},
		{"place", &netops.Link{In: "elsewhere", Name: "eth0", Kind: "bridge"}, netops.ErrInvalid, "elsewhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{c.o}}, ns)
			if c.err != nil {
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Plan: %v, want %v: %s", err, c.err, c.want)
				}
				return
			}
			if err != nil || lines(plan.Changes) != c.want {
				t.Errorf("Plan: %q, %v, want %q", lines(plan.Changes), err, c.want)
			}
		})
	}
}

func TestOpenNamespace(t *testing.T) {
	n, box := newNet(t, nil), netopstest.New(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", dir, dir + "/none", dir + "/file", dir + "/pipe", "/proc/self/ns/mnt", "/dev/null", "a\x00b", strings.Repeat("x", 10000)} {
		if ns, err := n.OpenNamespace(path); !errors.Is(err, netops.ErrNoNetns) {
			t.Errorf("OpenNamespace(%.20q): %v, %v, want ErrNoNetns", path, ns, err)
		}
	}
	own, err := n.OpenNamespace("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other := open(t, n, box)
	for ns, want := range map[*netops.Namespace]bool{own: true, other: false} {
		if got, err := n.IsHost(ns); err != nil || got != want {
			t.Errorf("IsHost(%q): %v, %v", ns.Path(), got, err)
		}
	}
}
