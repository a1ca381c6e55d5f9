package netopstest

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ChangeHost is like NS.Change, for an interface of the host.
func ChangeHost(t testing.TB, name string, change LinkChange) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = change(l)
	}
	if err != nil {
		t.Fatalf("change %s: %v", name, err)
	}
}

// OtherMAC is a LinkChange that sets another MAC address. Some kinds of links, such as IP tunnels, have a fixed one.
func OtherMAC(l netlink.Link) error {
	err := netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 0x99})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("change the MAC of %q: %w: the MAC of a link of kind %q is fixed: remove netopstest.OtherMAC from the suite's Tamper", l.Attrs().Name, err, l.Type())
	}
	return err
}

// SmallerMTU changes a link's MTU.
func SmallerMTU(l netlink.Link) error { return netlink.LinkSetMTU(l, 1350) }

// DropAddress is a LinkChange that deletes the interface's first IPv4 address.
func DropAddress(l netlink.Link) error {
	all, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil || len(all) == 0 {
		return errors.Join(err, errors.New("no address to drop"))
	}
	return netlink.AddrDel(l, &all[0])
}

// DropRoute is a LinkChange that deletes the interface's first IPv4 route.
func DropRoute(l netlink.Link) error {
	all, err := netlink.RouteList(l, netlink.FAMILY_V4)
	if err != nil || len(all) == 0 {
		return errors.Join(err, errors.New("no route to drop"))
	}
	return netlink.RouteDel(&all[0])
}

// DropDefault is a LinkChange that deletes the interface's default route via a
// gateway.
func DropDefault(gateway ...byte) LinkChange {
	return func(l netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway})
	}
}

// FlushRuleset deletes the whole nftables ruleset.
func FlushRuleset() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.FlushRuleset()
	return c.Flush()
}

// FlushRules deletes the rules of all nftables chains, and keeps the tables with their sets.
func FlushRules() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := c.ListTables()
	for _, t := range tables {
		c.FlushTable(t)
	}
	return errors.Join(err, c.Flush())
}

// LocalAddress gives the host an address on lo until the end of the test. It may have it already.
func LocalAddress(t testing.TB, prefix string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrReplace(lo, a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.AddrDel(lo, a) }) // a test may delete it itself
}

// StopForwarding disables IPv4 forwarding.
func StopForwarding() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0)
}
