package netops_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestVerifySeesTampering changes one property at a time and restores it.
func TestVerifySeesTampering(t *testing.T) {
	ctx := context.Background()
	spec := wanted("tbr2", "vth2")
	n, box := newNet(t, nil), netopstest.New(t)
	defer clean(t, spec)
	ns := open(t, n, box)
	if err := n.Ensure(ctx, spec, ns); err != nil {
		t.Fatal(err)
	}
	host := func(s string) { run(t, strings.Fields(s)...) }
	ct := func(s string) { inside(t, box, strings.Fields(s)...) }
	run(t, "ip", "link", "add", "tother", "type", "bridge")
	defer run(t, "ip", "link", "del", "tother")
	for _, c := range []struct {
		in         func(string)
		tamper     string
		back, want string
	}{
		{host, "ip link set vth2 mtu 1300", "ip link set vth2 mtu 1400", "mtu 1400: mtu 1300"},
		{host, "ip link set vth2 address 02:00:00:00:00:31", "ip link set vth2 address 02:00:00:00:00:01", "address 02:00:00:00:00:01: address 02:00:00:00:00:31"},
		{host, "ip link set vth2 alias cnibox:other", "ip link set vth2 alias " + testLabel, "label " + testLabel + ": label cnibox:other"},
		{host, "bridge link set dev vth2 hairpin off", "bridge link set dev vth2 hairpin on", "hairpin on: hairpin off"},
		{host, "bridge link set dev vth2 isolated off", "bridge link set dev vth2 isolated on", "isolated on: isolated off"},
		{host, "ip address del 10.22.0.1/16 dev tbr2", "ip address add 10.22.0.1/16 dev tbr2", "present: absent"},
		{host, "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1", "1: 0"},
		{host, "nft delete element inet cnibox masq4 { tbr2 . 10.22.0.0/16 }", "nft add element inet cnibox masq4 { tbr2 . 10.22.0.0/16 }", "present: absent"},
		{host, "nft delete element bridge cnibox macguard_pairs { vth2 . 02:00:00:00:00:02 }", "nft add element bridge cnibox macguard_pairs { vth2 . 02:00:00:00:00:02 }", "present: absent"},
		{ct, "ip neighbour del 10.22.0.77 dev eth0", "ip neighbour add 10.22.0.77 lladdr 02:00:00:00:00:77 dev eth0", "present: absent"},
		// The neighbour is absent from here on, because a new MAC
		// address flushes it.
		{ct, "ip link set eth0 address 02:00:00:00:00:32", "ip link set eth0 address 02:00:00:00:00:02", "peer address 02:00:00:00:00:02: peer address 02:00:00:00:00:32"},
		{ct, "ip address del 10.22.0.2/16 dev eth0", "", "present: absent"},
		{ct, "ip address add 10.22.0.2/16 dev eth0", "ip route add 0.0.0.0/0 via 10.22.0.1 mtu 1300 advmss 1200", "present: absent"},
		{ct, "ip route change default via 10.22.0.1 mtu 1299 advmss 1200", "ip route change default via 10.22.0.1 mtu 1300 advmss 1200", "mtu 1300: mtu 1299"},
		{ct, "ip rule del priority 100", "ip rule add priority 100 from 10.22.0.2 table 1234", "present: absent"},
		{ct, "sysctl -qw net.ipv4.conf.eth0.arp_notify=0", "sysctl -qw net.ipv4.conf.eth0.arp_notify=1", "1: 0"},
		{ct, "ip -6 route del default", "ip -6 route add default via fd00:22::1", "present: absent"},
		{host, "ip link set vth2 master tother", "ip link set vth2 master tbr2", "master tbr2: master tother"},
		{host, "bridge link set dev vth2 hairpin on isolated on", "", ""},
		{ct, "ip link set eth0 down", "", "state up: state down"},
	} {
		c.in(c.tamper)
		diffs, err := n.Verify(ctx, spec, ns)
		if err != nil {
			t.Errorf("%s: %v", c.tamper, err)
		}
		found := c.want == ""
		var all []string
		for _, d := range diffs {
			line := d.Want + ": " + d.Have
			all = append(all, fmt.Sprintf("%s: want %s", d.Object, line))
			found = found || line == c.want
		}
		if !found {
			t.Errorf("%s: Verify tells %q, want %s", c.tamper, all, c.want)
		}
		if c.back == "" {
			continue
		}
		c.in(c.back)
	}
	inside(t, box, "ip", "link", "set", "eth0", "name", "eth9")
	diffs, err := n.Verify(ctx, spec, ns)
	if err != nil || len(diffs) < 6 {
		t.Errorf("with the container's link renamed: %v, %v", diffs, err)
	}
	run(t, "ip", "link", "del", "vth2")
	run(t, "ip", "link", "del", "tbr2")
	if diffs, err = n.Verify(ctx, spec, ns); err != nil || len(diffs) < 10 {
		t.Errorf("with the bridge gone: %v, %v", diffs, err)
	}
}

// TestVerifyTolerates checks that Verify accepts the changes of chained plugins.
func TestVerifyTolerates(t *testing.T) {
	ctx := context.Background()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	inside(t, box, "ip", "link", "add", "eth0", "address", "02:00:00:00:00:05", "type", "bridge")
	inside(t, box, "ip", "link", "set", "eth0", "up", "promisc", "on", "mtu", "1300", "alias", "text")
	inside(t, box, "ip", "address", "add", "10.1.0.2/24", "dev", "eth0")
	inside(t, box, "ip", "route", "add", "default", "via", "10.1.0.1", "table", "77", "metric", "9")
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Container, Name: "eth0", Up: true},
		&netops.Route{In: netops.Container, Link: "eth0", Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1")},
		&netops.Sysctl{In: netops.Container, Key: "net/ipv6/conf/none/accept_ra", Value: "0", Optional: true},
	}}
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	spec.Add(&netops.Route{In: netops.Container, Link: "eth0", Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1"), Table: unix.RT_TABLE_MAIN})
	if diffs, err := n.Verify(ctx, spec, ns); err != nil || len(diffs) != 1 {
		t.Errorf("Verify with a table: %v, %v", diffs, err)
	}
	if _, err := n.Verify(ctx, spec, nil); err == nil {
		t.Error("Verify without a container: no error")
	}
}
