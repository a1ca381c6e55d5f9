package netops_test

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// TestTakeoverRefuses checks that unsupported uplinks are refused without
// changes.
func TestTakeoverRefuses(t *testing.T) {
	ctx := t.Context()
	for name, tc := range map[string]struct {
		setup  string
		uplink string
		want   string
	}{
		"absent":   {"true", "eth9", `link "eth9": does not exist`},
		"loopback": {"true", "lo", `uplink "lo" is not an Ethernet device`},
		"down":     {"ip link set eth0 down", "eth0", `uplink "eth0" is down`},
		"a bridge": {"ip link add br9 up type bridge", "br9", `uplink "br9" is a link of kind "bridge"`},
		"macvlan":  {"ip link add link eth0 name mac9 type macvlan", "mac9", `of kind "macvlan"`},
		"of another bridge": {
			"ip link add br9 type bridge; ip link set eth0 master br9", "eth0", `uplink "eth0" belongs to "br9" already`,
		},
		"bridge's name":   {"ip link add azure0 type veth peer name br9", "eth0", `interface "azure0" is a link of kind "veth"`},
		"several hops":    {"ip route add 203.0.113.0/24 nexthop via 10.240.0.1 dev eth0 nexthop via 10.240.0.7 dev eth0", "eth0", "203.0.113.0/24"},
		"nexthop objects": {"ip nexthop add id 7 via 10.240.0.1 dev eth0; ip route add 203.0.113.0/24 nhid 7", "eth0", "nexthop object"},
	} {
		t.Run(name, func(t *testing.T) {
			newUplink(t)
			t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "br9").Run() })
			for command := range strings.SplitSeq(tc.setup, "; ") {
				run(t, strings.Fields(command)...)
			}
			before := netopstest.Snapshot(t)
			n := newNet(t, nil)
			spec := netops.Spec{Objects: []netops.Object{&netops.Takeover{Bridge: "azure0", Uplink: tc.uplink}}}
			err := n.Ensure(ctx, spec, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, netops.ErrConflict) && !errors.Is(err, netops.ErrNotExist) {
				t.Errorf("Ensure: %v, want %q", err, tc.want)
			}
			if d := cmp.Diff(before, netopstest.Snapshot(t)); d != "" {
				t.Errorf("changed (-before +after):\n%s", d)
			}
		})
	}
}

// TestTakeoverWithExistingBridge uses a bridge of another program. The bridge
// and its ports remain after the restoration. RestoreUplink refuses a bridge that
// has a pod's port unless force is set.
func TestTakeoverWithExistingBridge(t *testing.T) {
	ctx := t.Context()
	newUplink(t)
	before := placedText(t, "eth0")
	run(t, "ip", "link", "add", "azure0", "type", "bridge")
	n := newNet(t, nil)
	if err := n.Ensure(ctx, taken(), nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, placedText(t, "azure0")); d != "" {
		t.Errorf("azure0 (-eth0 before +azure0):\n%s", d)
	}
	if d, err := n.Verify(ctx, taken(), nil); err != nil || len(d) != 0 {
		t.Errorf("Verify: %v, %v", d, err)
	}
	run(t, "ip", "link", "add", "azvpod", "master", "azure0", "type", "veth", "peer", "name", "azvpod2")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "azvpod").Run() })
	if err := n.RestoreUplink(ctx, *azure0(), false); !errors.Is(err, netops.ErrConflict) || !strings.Contains(err.Error(), "azvpod") {
		t.Errorf("RestoreUplink with a pod's port: %v", err)
	}
	if err := n.RestoreUplink(ctx, *azure0(), true); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, placedText(t, "eth0")); d != "" {
		t.Errorf("eth0 (-before +restored):\n%s", d)
	}
	if left := strings.TrimSpace(placedText(t, "azure0")); left != "" {
		t.Errorf("left on azure0:\n%s", left)
	}
	if l, err := n.Link(ctx, nil, "azvpod"); err != nil || l.Master != "azure0" {
		t.Errorf("the port of another program's bridge: %+v, %v", l, err)
	}
}

// TestTakeoverComesBack adds an address to the uplink again, as networkd or a
// DHCP client does, and checks that Apply moves it. Then it reverts the takeover
// with the recorded inverse of shared objects.
func TestTakeoverComesBack(t *testing.T) {
	ctx := t.Context()
	newUplink(t)
	before := placedText(t, "eth0")
	n := newNet(t, nil)
	spec := netops.Spec{Objects: []netops.Object{&netops.Takeover{Bridge: "azure0", Uplink: "eth0", NoHairpin: true}}}
	if err := n.Ensure(ctx, spec, nil); err != nil {
		t.Fatal(err)
	}
	if l, err := n.Link(ctx, nil, "eth0"); err != nil || l.Hairpin {
		t.Errorf("eth0: %+v, %v, want it without hairpin", l, err)
	}
	placed := placedText(t, "azure0")
	run(t, "ip", "address", "add", "10.240.0.4/16", "brd", "10.240.255.255", "dev", "eth0")
	run(t, "ip", "route", "append", "default", "via", "10.240.0.1", "dev", "eth0", "proto", "dhcp", "src", "10.240.0.4", "metric", "100")
	d, err := n.Verify(ctx, spec, nil)
	if err != nil || len(d) != 3 { // the address, its route and the default route
		t.Errorf("Verify: %v, %v", d, err)
	}
	if err := n.Ensure(ctx, spec, nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(placed, placedText(t, "azure0")); d != "" {
		t.Errorf("azure0 (-first +again):\n%s", d)
	}
	if d, err := n.Verify(ctx, spec, nil); err != nil || len(d) != 0 {
		t.Errorf("Verify again: %v, %v", d, err)
	}
	if err := n.Undo(ctx, netops.SharedInverses(spec), nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, placedText(t, "eth0")); d != "" {
		t.Errorf("eth0 (-before +restored):\n%s", d)
	}
	// An operator without a record knows only the bridge's name.
	if err := n.Ensure(ctx, spec, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.RestoreUplink(ctx, netops.Takeover{Bridge: "azure0"}, false); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, placedText(t, "eth0")); d != "" {
		t.Errorf("eth0 (-before +restored without a record):\n%s", d)
	}
	if err := n.RestoreUplink(ctx, netops.Takeover{Bridge: "azure0"}, false); err != nil {
		t.Errorf("RestoreUplink again: %v", err)
	}
}

// TestTakeoverWithoutAdverts checks that addresses become permanent if no router
// advertisement can refresh their lifetimes.
func TestTakeoverWithoutAdverts(t *testing.T) {
	newUplink(t)
	run(t, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=0")
	if err := newNet(t, nil).Ensure(t.Context(), taken(), nil); err != nil {
		t.Fatal(err)
	}
	all := run(t, "ip", "address", "show", "dev", "azure0") + run(t, "ip", "-6", "route", "show", "dev", "azure0")
	if strings.Contains(all, "dynamic") || strings.Contains(all, "expires") || !strings.Contains(all, "fd00:240::4/64") {
		t.Errorf("azure0:\n%s", all)
	}
}

// TestTakeoverFollowsAdverts checks that a router advertisement after the
// takeover refreshes, on the bridge, the address that an earlier one added to
// the uplink.
func TestTakeoverFollowsAdverts(t *testing.T) {
	ctx := t.Context()
	box := newUplink(t)
	run(t, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.eth0.accept_ra=1", "net.ipv6.conf.eth0.autoconf=1")
	run(t, "ip", "-6", "route", "del", "default")
	const address = "fd00:242:0:0:0:aff:fef0:4" // of MAC 02:00:0a:f0:00:04
	refreshed := func(link, life string) func() bool {
		return func() bool {
			return strings.Contains(run(t, "ip", "-6", "address", "show", "dev", link), life)
		}
	}
	awaitAdvert(t, box, 4099, refreshed("eth0", "valid_lft 40"))
	n := newNet(t, nil)
	if err := n.Ensure(ctx, taken(), nil); err != nil {
		t.Fatal(err)
	}
	want := net.ParseIP(address).String() + "/64"
	if have := run(t, "ip", "-6", "address", "show", "dev", "azure0"); !strings.Contains(have, want) {
		t.Fatalf("azure0 has no %s:\n%s", want, have)
	}
	awaitAdvert(t, box, 9099, refreshed("azure0", "valid_lft 90"))
	if have := run(t, "ip", "-6", "address", "show", "dev", "azure0"); strings.Count(have, "fd00:242:") != 1 {
		t.Errorf("azure0 has more than one address of the advertised prefix:\n%s", have)
	}
	if routes := run(t, "ip", "-6", "route", "show", "default", "dev", "azure0"); !strings.Contains(routes, "metric 1024 expires") || !strings.Contains(routes, "metric 1025 expires") {
		t.Errorf("default routes:\n%s", routes)
	}
	if d, err := n.Verify(ctx, taken(), nil); err != nil || len(d) != 0 {
		t.Errorf("Verify: %v, %v", d, err)
	}
}

// awaitAdvert repeats the advertisement until it takes effect, as routers do.
// The link can lose advertisements before it listens.
func awaitAdvert(t *testing.T, box *netopstest.NS, valid uint16, heeded func() bool) {
	t.Helper()
	await.Until(t, func() bool { advertise(t, box, valid); return heeded() }, func() string {
		return "no address of the advertised prefix:\n" + run(t, "ip", "-6", "address")
	})
}

// advertise sends a router advertisement with a prefix (RFC 4861 §4.2, §4.6.2).
func advertise(t *testing.T, box *netopstest.NS, valid uint16) {
	t.Helper()
	life := []byte{0, 0, byte(valid >> 8), byte(valid)}
	b := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 64, 0xc0}
	b = append(append(append(b, life...), life...), 0, 0, 0, 0)
	b = append(b, net.ParseIP("fd00:242::")...)
	box.Do(t, func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // test socket
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		// The source must be the link-local address.
		from := &unix.SockaddrInet6{ZoneId: uint32(link.Index), Addr: [16]byte{0xfe, 0x80, 15: 1}}
		if err := unix.Bind(fd, from); err != nil {
			return err
		}
		to := &unix.SockaddrInet6{ZoneId: uint32(link.Index), Addr: [16]byte{0xff, 0x02, 15: 1}}
		return unix.Sendto(fd, b, 0, to)
	})
}

// TestTakeoverRenamed renames the uplink of a bridge, as udev can after a driver
// was bound again. Apply completes the takeover, and RestoreUplink uses the new
// name.
func TestTakeoverRenamed(t *testing.T) {
	ctx := t.Context()
	newUplink(t)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "ens5").Run() })
	n := newNet(t, nil)
	if err := n.Ensure(ctx, taken(), nil); err != nil {
		t.Fatal(err)
	}
	want := placedText(t, "azure0")
	run(t, "ip", "link", "set", "eth0", "down")
	run(t, "ip", "link", "set", "eth0", "name", "ens5")
	run(t, "ip", "link", "set", "ens5", "up")
	all, err := n.Takeovers(ctx)
	if d := cmp.Diff([]netops.Takeover{{Bridge: "azure0", Uplink: "ens5"}}, all); err != nil || d != "" {
		t.Fatalf("Takeovers: %v\n%s", err, d)
	}
	renamed := netops.Spec{Objects: []netops.Object{&netops.Takeover{Bridge: "azure0", Uplink: "ens5"}}}
	if d, err := n.Verify(ctx, renamed, nil); err != nil || len(d) != 1 {
		t.Errorf("Verify: %v, %v, want that the bridge is in place of eth0", d, err)
	}
	if err := n.Ensure(ctx, renamed, nil); err != nil {
		t.Fatal(err)
	}
	if d, err := n.Verify(ctx, renamed, nil); err != nil || len(d) != 0 {
		t.Errorf("Verify: %v, %v", d, err)
	}
	if err := n.RestoreUplink(ctx, netops.Takeover{Bridge: "azure0"}, false); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, placedText(t, "ens5")); d != "" {
		t.Errorf("ens5 (-azure0 before +ens5):\n%s", d)
	}
}

// TestTakeoverOfSecondUplink checks that a bridge cannot take over a second uplink, which
// would join both networks. Nothing is changed.
func TestTakeoverOfSecondUplink(t *testing.T) {
	ctx := t.Context()
	newUplink(t)
	run(t, "ip", "link", "add", "eth1", "up", "type", "veth", "peer", "name", "far1")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "eth1").Run() })
	run(t, "ip", "address", "add", "10.241.0.4/16", "dev", "eth1")
	n := newNet(t, nil)
	if err := n.Ensure(ctx, taken(), nil); err != nil {
		t.Fatal(err)
	}
	before := netopstest.Snapshot(t)
	err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{&netops.Takeover{Bridge: "azure0", Uplink: "eth1"}}}, nil)
	if !errors.Is(err, netops.ErrConflict) || !strings.Contains(err.Error(), `bridge "azure0" has taken over "eth0"`) {
		t.Errorf("Ensure: %v", err)
	}
	if d := cmp.Diff(before, netopstest.Snapshot(t)); d != "" {
		t.Errorf("changed (-before +after):\n%s", d)
	}
}
