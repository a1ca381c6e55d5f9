package azurevnet_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// tenant is a network on a VLAN. All tenants have the same addresses.
func tenant(name string, vlan int) string {
	return fmt.Sprintf(`{"name":%q,"type":"azure-vnet","mode":"transparent-vlan","master":"eth0","vlanId":%d,%s}`, name, vlan, dual)
}

var red, blue = tenant("red", 100), tenant("blue", 200)

func needVLAN(t testing.TB) { netopstest.NeedKind(t, "vlan") }

// TestVLANRole runs the suite in the mode transparent-vlan.
func TestVLANRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "azure-vnet",
		Confs: []rolestest.Conf{{
			Name: "vlan", JSON: red, Refused: map[string]any{"vlanId": 4095}, Host: eth0, Needs: needVLAN,
			Tamper: []rolestest.Tamper{
				addressGone, linkGone,
				inRed("host's end down", func() error { return each("azv", netlink.LinkSetDown) }),
				inRed("VLAN gone", func() error { return each("eth0_100", netlink.LinkDel) }),
				inRed("rule gone", func() error {
					r := netlink.NewRule()
					r.Family, r.Priority, r.Table = netlink.FAMILY_V4, 103, 2
					return netlink.RuleDel(r)
				}),
			},
		}},
	}.Run(t)
}

// space is a VLAN's namespace for sockets and changes.
type space string

func (s space) Do(t testing.TB, f func() error) {
	t.Helper()
	n := netops.New(netops.Options{})
	ns, err := n.OpenNamespace(netops.NamespaceDir + "/" + string(s))
	must(t, err)
	defer ns.Close()
	must(t, ns.Run(f))
}

// inRed is a change in the namespace of the VLAN 100.
func inRed(name string, do func() error) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, _ *roles.Result) {
		space("az_ns_100").Do(t, do)
	}}
}

// each changes those links of the calling thread whose names have a prefix.
func each(prefix string, do func(netlink.Link) error) error {
	links, err := netlink.LinkList()
	errs := []error{err}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, prefix) {
			errs = append(errs, do(l))
		}
	}
	return errors.Join(errs...)
}

// vlan is a tenant's part of the fabric: a router with the fabric's addresses
// on a VLAN of the node's eth0.
func (f *fabric) vlan(t *testing.T, id int) *fabric {
	t.Helper()
	v := &fabric{NS: netopstest.New(t), mac: f.mac}
	ns, err := os.Open(v.Path())
	must(t, err)
	defer ns.Close()
	f.Do(t, func() error {
		parent, err := netlink.LinkByName("f0")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Vlan{
			LinkAttrs: netlink.LinkAttrs{Name: "vlan0", ParentIndex: parent.Attrs().Index, Namespace: netlink.NsFd(int(ns.Fd()))},
			VlanId:    id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q,
		})
	})
	v.Do(t, func() error {
		return errors.Join(each("vlan0", func(l netlink.Link) error { return netlink.LinkSetName(l, "f0") }), v.prepare())
	})
	return v
}

// forget removes an address from the fabric's neighbour table, so that the
// fabric sends an ARP request.
func (f *fabric) forget(t *testing.T, addr string) {
	t.Helper()
	f.Do(t, func() error {
		l, err := netlink.LinkByName("f0")
		if err != nil {
			return err
		}
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(addr)})
	})
}

// TestVLANs: pods of one VLAN reach each other and machines outside the node
// with their own addresses, all through the fabric. Pods of another VLAN have
// the same addresses and are not affected. The VLANs' objects on the node are
// removed with the last pods.
func TestVLANs(t *testing.T) {
	needVLAN(t)
	f := newFabric(t)
	atRed, atBlue := f.vlan(t, 100), f.vlan(t, 200)
	e := rolestest.NewEnv(t, all.Table())
	before := e.State(nil)
	t.Run("attached", func(t *testing.T) {
		a, b := attach(t, e, red, "a"), attach(t, e, red, "b")
		c, d := attach(t, e, blue, "c"), attach(t, e, blue, "d")
		if a.addr != c.addr || b.addr != d.addr {
			t.Fatalf("addresses are %s, %s and %s, %s, want the same twice", a.addr, b.addr, c.addr, d.addr)
		}
		atA, atB, atD := at(t, a, a.addr), at(t, b, b.addr), at(t, d, d.addr)
		red, blue := atRed.forwarded(t), atBlue.forwarded(t)
		netopstest.CheckDatagram(t, "red", a, atB, a.addr)
		netopstest.CheckDatagram(t, "and back", b, atA, b.addr)
		if atRed.forwarded(t) == red || atBlue.forwarded(t) != blue {
			t.Errorf("packets between pods of red passed red's fabric %d times and blue's %d times", atRed.forwarded(t)-red, atBlue.forwarded(t)-blue)
		}
		netopstest.CheckDatagram(t, "blue", c, atD, c.addr) // a packet from red's pod would be read first
		netopstest.CheckDatagram(t, "pod to VNet", a, at(t, atRed, beyond), a.addr)
		netopstest.CheckDatagram(t, "pod to world", c, at(t, atBlue, world), c.addr)
		atRed.forget(t, a.addr)
		netopstest.CheckDatagram(t, "VNet to pod that it asks for", atRed, netopstest.Listen(t, a, net.JoinHostPort(a.addr, "5001")), gateway)
		six := "fd00:240::36"
		netopstest.CheckDatagram(t, "IPv6", b, netopstest.Listen(t, a, net.JoinHostPort(six, "5002")), "fd00:240::37")
		refused(t, a)
	})
	for _, conf := range []string{red, blue} {
		collect(t, e, conf)
	}
	if have := e.State(nil); have != before {
		t.Errorf("after DEL and GC:\n%s\nbefore:\n%s", have, before)
	}
}

// refused: pods can use only the DNS of Azure's machine service.
func refused(t *testing.T, p *pod) {
	t.Helper()
	p.Do(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{168, 63, 129, 16}})
		if !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("a connection to 168.63.129.16:80: %v, want it refused", err)
		}
		return nil
	})
}

// TestVLANKeys: an invalid configuration is reported with its key and leaves
// nothing. DEL succeeds without the container's namespace, and without the
// VLAN's.
func TestVLANKeys(t *testing.T) {
	needVLAN(t)
	eth0(t)
	must(t, netopstest.MakeMaster("eth1"))
	t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "eth1"))) })
	p := rolestest.NewPod(t, all.Table(), "azure-vnet")
	start := p.State()
	const pool = `,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.240.0.0/16"}]]}`
	const of100 = `,"mode":"transparent-vlan","vlanId":100,"master":"eth0"` + pool
	same := func(when string) {
		t.Helper()
		p.NS.Reset(t)
		if have := p.State(); have != start {
			t.Errorf("%s:\n%s\nwant\n%s", when, have, start)
		}
	}
	p.Refused(p.Call("ADD", `,"mode":"transparent-vlan","master":"eth0"`+pool), 7, "vlanId: is required")
	p.Refused(p.Call("ADD", `,"mode":"transparent-vlan","vlanId":100,"master":"eth9"`+pool), 101, "eth9")
	same("after refusals")

	p.OK(p.Call("ADD", of100))
	second := p.Call("ADD", `,"mode":"transparent-vlan","vlanId":100,"master":"eth1"`+pool)
	second.IfName = "net1"
	p.Refused(second, 0, `and not one of master \"eth1\"`)
	p.OK(p.Call("DEL", of100))
	same("after DEL")

	p.OK(p.Call("ADD", of100))
	gone := p.Call("DEL", of100)
	gone.Netns = ""
	p.OK(gone)
	same("after DEL without the container's namespace")

	p.OK(p.Call("ADD", of100))
	must(t, netops.New(netops.Options{}).RemoveNamespace("az_ns_100"))
	p.OK(p.Call("DEL", of100))
	if _, err := os.Lstat(netops.NamespaceDir + "/az_ns_100"); err == nil {
		t.Error("DEL created the VLAN's namespace again")
	}
}
