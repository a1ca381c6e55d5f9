package ptp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// newOutside is a machine that the host reaches as 192.0.2.2 and 2001:db8::2.
// It has no route to the containers.
func newOutside(t *testing.T) *netopstest.NS {
	t.Helper()
	ns := netopstest.New(t)
	f, err := os.Open(ns.Path())
	must(t, err)
	defer f.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd()))}
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() { must(t, netlink.LinkDel(pair)) })
	must(t, netopstest.LinkUp("out0", "192.0.2.1/24", "2001:db8::1/64"))
	ns.Do(t, func() error { return netopstest.LinkUp("eth0", "192.0.2.2/24", "2001:db8::2/64") })
	return ns
}

// TestTraffic: containers reach each other through the host with their own
// addresses, containers and host reach each other, and containers reach the
// outside masqueraded, in both address families. It works at once, without a
// wait for duplicate address detection (upstream took seconds,
// containernetworking/plugins#680).
func TestTraffic(t *testing.T) {
	for _, conf := range []struct{ name, json, gateway4 string }{
		{"subnet", dual, "10.1.0.1"},
		{"host addressing", host, "169.254.1.1"},
		{"netkit", netkit, "10.1.0.1"},
	} {
		t.Run(conf.name, func(t *testing.T) {
			if conf.json == netkit {
				needNetkit(t)
			}
			out := newOutside(t)
			e := rolestest.NewEnv(t, all.Table())
			t.Cleanup(func() { collect(t, e, conf.json) })
			a, b := attach(t, e, conf.json, "a"), attach(t, e, conf.json, "b")
			nothingTentative(t, a, b)
			for _, v := range []struct{ a, b, gateway, node, out string }{
				{a.addrs[0], b.addrs[0], conf.gateway4, "192.0.2.1", "192.0.2.2"},
				{a.addrs[1], b.addrs[1], "fd00:1::1", "2001:db8::1", "2001:db8::2"},
			} {
				at := func(in netopstest.Place, addr string) *net.UDPConn {
					return netopstest.Listen(t, in, net.JoinHostPort(addr, "5000"))
				}
				atB, atGateway, atOut := at(b, v.b), at(nil, v.gateway), at(out, v.out)
				netopstest.CheckDatagram(t, "host to container", nil, atB, v.gateway)
				netopstest.CheckDatagram(t, "container to container", a, atB, v.a)
				netopstest.CheckDatagram(t, "container to host", a, atGateway, v.a)
				netopstest.CheckDatagram(t, "container to outside", a, atOut, v.node)
				netopstest.CheckDatagram(t, "other container to outside", b, atOut, v.node)
			}
		})
	}
}

// TestTrafficOfSingleAddress: a single address is masqueraded by its own entry,
// or by the entry of a network whose subnet contains it.
func TestTrafficOfSingleAddress(t *testing.T) {
	for _, c := range []struct {
		name   string
		beside bool
	}{{"alone", false}, {"in another network's subnet", true}} {
		t.Run(c.name, func(t *testing.T) {
			out := newOutside(t)
			e := rolestest.NewEnv(t, all.Table())
			t.Cleanup(func() { collect(t, e, dual) })
			if c.beside {
				attach(t, e, dual, "b").detach(e) // the network's entry stays
			}
			p := attach(t, e, single, "a")
			netopstest.CheckDatagram(t, "IPv4", p, netopstest.Listen(t, out, "192.0.2.2:5000"), "192.0.2.1")
			netopstest.CheckDatagram(t, "IPv6", p, netopstest.Listen(t, out, "[2001:db8::2]:5000"), "2001:db8::1")
		})
	}
}

// nothingTentative asserts that every address is usable at once, and that the
// container's link-local address, which the kernel adds when it detects a
// carrier, will be.
func nothingTentative(t *testing.T, pods ...*pod) {
	t.Helper()
	check := func(link string) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
		for _, a := range addrs {
			// The kernel ends the detection for its own link-local address in a work queue, also with accept_dad 0.
			if a.Flags&unix.IFA_F_TENTATIVE != 0 && !a.IP.IsLinkLocalUnicast() {
				return fmt.Errorf("%s of %q is tentative", a.IPNet, link)
			}
		}
		return err
	}
	for _, p := range pods {
		must(t, check(p.hostLink))
		p.Do(t, func() error {
			dad, err := os.ReadFile("/proc/sys/net/ipv6/conf/eth0/accept_dad")
			if l, _ := netlink.LinkByName("eth0"); err == nil && l.Type() != "netkit" && strings.TrimSpace(string(dad)) != "0" {
				err = fmt.Errorf("accept_dad of eth0 is %q", dad)
			}
			return errors.Join(err, check("eth0"))
		})
	}
}

// TestHostEndLinkLocal: the host's end has a link-local address only if the
// container has an IPv6 address. It has no anycast address: DEL would wait for
// that.
func TestHostEndLinkLocal(t *testing.T) {
	for _, c := range []struct {
		json string
		bits []int
	}{{plain, nil}, {dual, []int{128}}} {
		e := rolestest.NewEnv(t, all.Table())
		t.Cleanup(func() { collect(t, e, c.json) })
		netopstest.CheckLinkLocal(t, attach(t, e, c.json, "a").hostLink, c.bits...)
	}
}

// TestTwoAttachments: one container has two attachments, each with a default
// route. Both addresses answer, and DEL of one leaves the other working.
func TestTwoAttachments(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	t.Cleanup(func() { collect(t, e, dual) })
	p := attach(t, e, dual, "a")
	second := p.call
	second.IfName = "eth1"
	e.OK(second)
	addrs := []string{p.addrs[0], p.addrs[1], "10.1.0.3", "fd00:1::3"}
	gateway := func(addr string) string {
		if strings.Contains(addr, ":") {
			return "fd00:1::1"
		}
		return "10.1.0.1"
	}
	for _, addr := range addrs {
		netopstest.CheckDatagram(t, "to "+addr, nil, netopstest.Listen(t, p, net.JoinHostPort(addr, "5000")), gateway(addr))
	}
	second.Verb = "DEL"
	e.OK(second)
	for _, addr := range addrs[:2] {
		netopstest.CheckDatagram(t, "after DEL to "+addr, nil, netopstest.Listen(t, p, net.JoinHostPort(addr, "5001")), gateway(addr))
	}
}

// TestAnnounce: the host, which may have an outdated MAC for the addresses, is
// updated.
func TestAnnounce(t *testing.T) {
	for _, c := range []struct{ name, json, v4 string }{{"subnet", dual, "10.1.0.2"}, {"host addressing", host, "10.1.0.1"}} {
		t.Run(c.name, func(t *testing.T) {
			e := rolestest.NewEnv(t, all.Table())
			netopstest.Announced(t, "", func() { attach(t, e, c.json, "a") }, netip.MustParseAddr(c.v4), netip.MustParseAddr("fd00:1::2"))
		})
	}
}
