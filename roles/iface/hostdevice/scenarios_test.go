package hostdevice_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// rig is a node with containers.
type rig struct {
	*rolestest.Env
	t      *testing.T
	spaces map[string]*netopstest.NS
}

func newRig(t *testing.T) *rig {
	t.Helper()
	virtual(t)
	return &rig{Env: rolestest.NewEnv(t, all.Table()), t: t, spaces: map[string]*netopstest.NS{}}
}

// call is a call for eth0 of a container, which is created with its first call.
func (r *rig) call(verb, id, conf string) rolestest.Call {
	r.t.Helper()
	if r.spaces[id] == nil {
		r.spaces[id] = netopstest.New(r.t)
	}
	return rolestest.Call{
		Type: "host-device", Verb: verb, ID: id, Netns: r.spaces[id].Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(r.t, conf, map[string]any{"cniVersion": "1.1.0"}),
	}
}

// check runs CHECK with ADD's result.
func (r *rig) check(id, conf string, added rolestest.Answer) rolestest.Call {
	return r.call("CHECK", id, rolestest.WithKeys(r.t, conf, map[string]any{"prevResult": json.RawMessage(added.Stdout)}))
}

// mentions fails the test if an answer lacks a text.
func (r *rig) mentions(a rolestest.Answer, text string) {
	r.t.Helper()
	if !strings.Contains(a.Stdout, text) {
		r.t.Errorf("%s\nlacks %q", a.Stdout, text)
	}
}

// same fails the test if the host's state has changed.
func (r *rig) same(want, when string) {
	r.t.Helper()
	if have := r.State(nil); have != want {
		r.t.Errorf("%s: state differs\nwant:\n%s\nhave:\n%s", when, want, have)
	}
}

// lose deletes /run/cnibox, as an operator might do.
func (r *rig) lose() {
	r.t.Helper()
	must(r.t, os.RemoveAll(r.RunDir()))
	must(r.t, os.Mkdir(r.RunDir(), 0o700))
}

// TestNameTaken is the reference's "same name already in container ns": the
// error is returned before anything is changed.
func TestNameTaken(t *testing.T) {
	r := newRig(t)
	c := conf(`"device":"dev0",` + dual)
	add := r.call("ADD", "c1", c)
	r.spaces["c1"].Do(t, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}})
	})
	before := r.State(nil, r.spaces["c1"])
	add.Probe = "net:fail:1" // reports if there was no write that could fail
	a := r.Fail(add, 102)
	r.mentions(a, `interface \"eth0\" exists already in the container's namespace`)
	if !strings.Contains(a.Stderr, "probe was not reached") {
		t.Error("something was changed before the error was returned")
	}
	r.OK(r.call("DEL", "c1", c))
	if have := r.State(nil, r.spaces["c1"]); have != before {
		t.Errorf("state differs\nwant:\n%s\nhave:\n%s", before, have)
	}
}

// TestHeld: an ADD for a device that a container has returns an error with that
// container, for every selector. After that container is detached the ADD
// succeeds.
func TestHeld(t *testing.T) {
	for _, keys := range []string{`"device":"dev0"`, `"hwaddr":"` + mac0 + `"`} {
		t.Run(keys, func(t *testing.T) {
			r := newRig(t)
			first := conf(`"device":"dev0"`)
			r.OK(r.call("ADD", "holder", first))
			before := r.State(nil)
			r.mentions(r.Fail(r.call("ADD", "late", conf(keys+`,`+dual)), 112), `device dev0: taken by \"eth0\" of container \"holder\" on network \"devices\"`)
			r.same(before, "after a refused ADD")
			r.OK(r.call("STATUS", "", conf(keys)))
			r.OK(r.call("DEL", "holder", first))
			r.OK(r.call("ADD", "late", conf(keys)))
			r.OK(r.call("DEL", "late", conf(keys)))
		})
	}
}

// TestHeldByUnfinished: the holder has not moved the device yet.
func TestHeldByUnfinished(t *testing.T) {
	r := newRig(t)
	c := conf(`"device":"dev0"`)
	before := r.State(nil)
	add := r.call("ADD", "holder", c)
	add.Probe = "net:stop:1"
	holder := r.Stopped(add)
	r.mentions(r.Fail(r.call("ADD", "late", c), 112), `taken by \"eth0\" of container \"holder\"`)
	must(t, holder.Process.Signal(unix.SIGCONT))
	must(t, holder.Wait())
	r.OK(r.call("DEL", "late", c))
	r.mentions(r.Fail(r.call("ADD", "late", c), 112), `taken by \"eth0\" of container \"holder\"`)
	r.OK(r.call("DEL", "holder", c))
	r.same(before, "after DEL")
}

// TestSelectors: an error is returned if the selectors match no device or
// several devices. It includes the reference's scenario "no selector fails".
func TestSelectors(t *testing.T) {
	r := newRig(t)
	none := conf(`"dns":{}`)
	r.mentions(r.Fail(r.call("ADD", "c1", none), 7), "give device, hwaddr, kernelpath or pciBusID")
	for _, verb := range []string{"DEL", "STATUS"} {
		r.OK(r.call(verb, "c1", none)) // these verbs do not need the device
	}
	for _, c := range []struct{ keys, want string }{
		{`"device":"absent"`, `device: link \"absent\": does not exist`},
		{`"hwaddr":"02:00:00:00:d0:99"`, "hwaddr: interface with the address 02:00:00:00:d0:99: does not exist"},
		{`"pciBusID":"0fff:00:1f.7"`, "pciBusID: device "},
		{`"kernelpath":"/sys/devices/pci0fff"`, `kernelpath: device \"/sys/devices/pci0fff\": does not exist`},
		{`"runtimeConfig":{"deviceID":"none.sf.1"}`, `runtimeConfig.deviceID: device `},
	} {
		r.mentions(r.Fail(r.call("ADD", "c1", conf(c.keys)), 0), c.want)
		r.mentions(r.Fail(r.call("STATUS", "c1", conf(c.keys)), 50), c.want)
		r.OK(r.call("DEL", "c1", conf(c.keys)))
	}
	twin := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "twin", HardwareAddr: link(t, "dev0").Attrs().HardwareAddr}, PeerName: "twin1"}
	must(t, netlink.LinkAdd(twin))
	defer func() { must(t, netlink.LinkDel(twin)) }()
	r.mentions(r.Fail(r.call("ADD", "c1", conf(`"hwaddr":"`+mac0+`"`)), 0), `\"dev0\" and \"twin\" both have the address 02:00:00:00:d0:00: select by device`)
	r.OK(r.call("ADD", "c1", conf(`"device":"dev1","hwaddr":"`+mac0+`"`))) // the first selector counts
	r.OK(r.call("DEL", "c1", conf(`"device":"dev1"`)))
}

// TestEnslaved: a bridge port is refused, because it would return without its
// bridge.
func TestEnslaved(t *testing.T) {
	r := newRig(t)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br9"}}
	must(t, netlink.LinkAdd(br))
	defer func() { must(t, netlink.LinkDel(br)) }()
	must(t, netlink.LinkSetMaster(link(t, "dev0"), br))
	before := r.State(nil)
	r.mentions(r.Fail(r.call("ADD", "c1", conf(`"device":"dev0"`)), 0), `interface \"dev0\" belongs to \"br9\"`)
	r.OK(r.call("DEL", "c1", conf(`"device":"dev0"`)))
	r.same(before, "after a refused ADD")
}

// TestRecordLost: the state is deleted while a container is attached. DEL finds
// the device and its name by its alias, even if the device was renamed in the
// container.
func TestRecordLost(t *testing.T) {
	for _, renamed := range []bool{false, true} {
		t.Run(fmt.Sprint("renamed ", renamed), func(t *testing.T) {
			r := newRig(t)
			c := conf(`"device":"dev1"`)
			before := r.State(nil)
			r.OK(r.call("ADD", "c1", c))
			r.lose()
			if renamed {
				r.spaces["c1"].Do(t, func() error {
					l, err := netlink.LinkByName("eth0")
					if err != nil {
						return err
					}
					if err := netlink.LinkSetDown(l); err != nil {
						return err
					}
					return netlink.LinkSetName(l, "net7")
				})
			}
			r.OK(r.call("DEL", "c1", c))
			r.same(before, "after DEL without a record")
		})
	}
}

// TestUserspace uses hardware with a userspace driver (DPDK), which is in the
// result but is not moved: the reference's "DPDK + IPAM". One container at a
// time has it.
func TestUserspace(t *testing.T) {
	netopstest.HardwareTree(t)
	const dir = "pci0000:00/0000:00:1c.0/"
	for i, driver := range []string{"vfio-pci", "uio_pci_generic", "igb_uio"} {
		id := fmt.Sprintf("0000:03:00.%d", i)
		netopstest.Hardware{Bus: "pci", ID: id, Path: dir + id, Driver: driver}.Add(t)
		for _, keys := range []string{`"pciBusID":"` + id + `"`, `"runtimeConfig":{"deviceID":"` + id + `"},` + dual} {
			t.Run(driver+" "+keys, func(t *testing.T) {
				r := newRig(t)
				c := conf(keys)
				before := r.State(nil)
				a := r.OK(r.call("ADD", "c1", c))
				var res roles.Result
				must(t, json.Unmarshal([]byte(a.Stdout), &res))
				if i := res.Interfaces; len(i) != 1 || i[0].Name != "eth0" || i[0].PciID != id || i[0].Mac != "" || i[0].Sandbox == "" {
					t.Errorf("interfaces are %s", a.Stdout)
				}
				if want := 2 * strings.Count(c, "ipam"); len(res.IPs) != want {
					t.Errorf("%d addresses, want %d", len(res.IPs), want)
				}
				r.OK(r.check("c1", c, a))
				r.mentions(r.Fail(r.call("ADD", "c2", c), 112), `taken by \"eth0\" of container \"c1\"`)
				r.OK(r.call("STATUS", "", c))
				del := r.call("DEL", "c1", c)
				del.Netns = "" // #1196: the addresses must be released without it
				r.OK(del)
				r.OK(r.call("DEL", "c1", c))
				r.same(before, "after DEL")
				r.OK(r.call("ADD", "c2", c))
				r.OK(r.call("DEL", "c2", c))
			})
		}
	}
}

// TestHardwareTree uses simulated devices on buses that no test machine has:
// the reference's "auxiliary device", and "PCI" and "kernelpath" with its
// virtio.
func TestHardwareTree(t *testing.T) {
	netopstest.HardwareTree(t)
	const pci = "pci0000:00/0000:00:1c.0/0000:03:00.0"
	netopstest.Hardware{Bus: "auxiliary", ID: "mlx5_core.sf.4", Path: pci + "/mlx5_core.sf.4", Driver: "mlx5_core.sf", Links: []string{"dev0"}}.Add(t)
	netopstest.Hardware{Bus: "pci", ID: "0000:00:04.0", Path: "pci0000:00/0000:00:04.0", Driver: "virtio-pci", Below: "virtio0", Links: []string{"dev1"}}.Add(t)
	for _, c := range []struct{ keys, mac, pciID string }{
		{`"runtimeConfig":{"deviceID":"mlx5_core.sf.4"},"pciBusID":"0000:00:04.0"`, mac0, ""},
		{`"pciBusID":"0000:00:04.0"`, mac1, "0000:00:04.0"},
		{`"kernelpath":"/sys/devices/pci0000:00/0000:00:04.0/virtio0"`, mac1, "0000:00:04.0"},
		{`"device":"dev1"`, mac1, "0000:00:04.0"},
	} {
		t.Run(c.keys, func(t *testing.T) {
			r := newRig(t)
			before := r.State(nil)
			a := r.OK(r.call("ADD", "c1", conf(c.keys)))
			var res roles.Result
			must(t, json.Unmarshal([]byte(a.Stdout), &res))
			if i := res.Interfaces; len(i) != 1 || i[0].Mac != c.mac || i[0].PciID != c.pciID {
				t.Errorf("interfaces are %s, want %s and PCI ID %q", a.Stdout, c.mac, c.pciID)
			}
			r.OK(r.check("c1", conf(c.keys), a))
			r.OK(r.call("DEL", "c1", conf(c.keys)))
			r.same(before, "after DEL")
		})
	}
}

// TestAnotherNamespace: at DEL the path of CNI_NETNS leads to another
// container, whose eth0 must not change.
func TestAnotherNamespace(t *testing.T) {
	r := newRig(t)
	c := conf(`"device":"dev0",` + dual)
	r.OK(r.call("ADD", "c1", c))
	other := r.call("ADD", "other", conf(`"device":"dev1",`+dual))
	r.OK(other)
	before := r.spaces["other"].Snapshot(t)
	r.spaces["c1"].Remove(t)
	del := r.call("DEL", "c1", c)
	del.Netns = other.Netns
	r.OK(del)
	if have := r.spaces["other"].Snapshot(t); have != before {
		t.Errorf("the other container has\n%s\nhad:\n%s", have, before)
	}
	other.Verb = "DEL"
	r.OK(other)
}

// TestHostNameTaken is the reference's scenario "DEL retry after a failed
// move": another interface of the host has got the device's name. The
// reference's DEL fails until that interface is gone. Ours moves the device
// back under a free name.
func TestHostNameTaken(t *testing.T) {
	r := newRig(t)
	c := conf(`"device":"dev1",` + dual)
	before := r.State(nil)
	r.OK(r.call("ADD", "c1", c))
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "dev1"}}
	must(t, netlink.LinkAdd(br))
	r.OK(r.call("DEL", "c1", c))
	r.OK(r.call("DEL", "c1", c))
	must(t, netlink.LinkDel(br))
	links, err := netlink.LinkList()
	must(t, err)
	for _, l := range links {
		if l.Attrs().HardwareAddr.String() == mac1 {
			must(t, netlink.LinkSetName(l, "dev1"))
		}
	}
	r.same(before, "after DEL, with the name given back")
}

// TestAnnounce: neighbours with an outdated MAC for the address are updated, as
// with macvlan (#673).
func TestAnnounce(t *testing.T) {
	r := newRig(t)
	must(t, netlink.LinkSetUp(link(t, "peer1")))
	c := conf(`"device":"dev1",` + dual)
	netopstest.Announced(t, "peer1", func() { r.OK(r.call("ADD", "c1", c)) }, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	r.OK(r.call("DEL", "c1", c))
}
