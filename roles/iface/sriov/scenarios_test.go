package sriov_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// rig is a node with a card and containers.
type rig struct {
	*rolestest.Env
	t      *testing.T
	card   string
	f      []netopstest.Function
	spaces map[string]*netopstest.NS
}

func newRig(t *testing.T) *rig {
	t.Helper()
	card, f := netopstest.NeedFunctions(t)
	return &rig{Env: rolestest.NewEnv(t, all.Table()), t: t, card: card, f: f, spaces: map[string]*netopstest.NS{}}
}

// call is a call for eth0 of a container, which is created with its first call.
func (r *rig) call(verb, id, conf string) rolestest.Call {
	r.t.Helper()
	if r.spaces[id] == nil {
		r.spaces[id] = netopstest.New(r.t)
	}
	var typed struct{ Type string }
	must(r.t, json.Unmarshal([]byte(conf), &typed))
	return rolestest.Call{
		Type: typed.Type, Verb: verb, ID: id, Netns: r.spaces[id].Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(r.t, conf, map[string]any{"cniVersion": "1.1.0"}),
	}
}

// same fails the test if the host's state has changed.
func (r *rig) same(want, when string) {
	r.t.Helper()
	if have := r.State(nil); have != want {
		r.t.Errorf("%s: state differs\nwant:\n%s\nhave:\n%s", when, want, have)
	}
}

func (r *rig) mentions(a rolestest.Answer, text string) {
	r.t.Helper()
	if !strings.Contains(a.Stdout, text) {
		r.t.Errorf("%s\nlacks %q", a.Stdout, text)
	}
}

// TestTraffic sends packets between two VFs of a VLAN, and between a VF and the wire. The wire has tagged frames, and the container
// sees none.
func TestTraffic(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	keys := `,"vlan":100,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}`
	first, second := conf(r.f[0], keys), conf(r.f[1], keys)
	r.OK(r.call("ADD", "c1", first))
	r.OK(r.call("ADD", "c2", second))
	wire, err := netlink.LinkByName("nic0")
	must(t, err)
	tagged := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "wire100", ParentIndex: wire.Attrs().Index}, VlanId: 100}
	must(t, netlink.LinkAdd(tagged))
	must(t, netopstest.LinkUp("nic0"))
	must(t, netopstest.LinkUp("wire100", "10.1.0.200/24"))
	for _, id := range []string{"c1", "c2"} { // the drivers notice their link after a while
		up := func() bool { return r.spaces[id].Link(t, "eth0").Attrs().OperState == netlink.OperUp }
		await.Until(t, up, func() string { return id + " has no link" })
	}
	netopstest.CheckDatagram(t, "VF to VF", r.spaces["c1"], netopstest.Listen(t, r.spaces["c2"], "10.1.0.3:7000"), "10.1.0.2")
	netopstest.CheckDatagram(t, "VF to wire", r.spaces["c1"], netopstest.Listen(t, nil, "10.1.0.200:7000"), "10.1.0.2")
	netopstest.CheckDatagram(t, "wire to VF", nil, netopstest.Listen(t, r.spaces["c1"], "10.1.0.2:7000"), "10.1.0.200")
	must(t, netlink.LinkDel(tagged))
	must(t, netlink.LinkSetDown(wire))
	r.OK(r.call("DEL", "c1", first))
	r.OK(r.call("DEL", "c2", second))
	r.same(before, "after DEL")
}

// TestNamespaceGone ends the namespace of a trusted container that changed its address. The kernel returns the interface under the
// container's name, and DEL without CNI_NETNS, GC or the next ADD restores it and the card's settings.
func TestNamespaceGone(t *testing.T) {
	r := newRig(t)
	c := conf(r.f[0], `,"vlan":100,"trust":"on","mac":"02:00:00:00:00:07"`)
	for _, then := range []struct {
		name string
		do   func()
	}{
		{"DEL", func() {
			del := r.call("DEL", "c1", c)
			del.Netns = ""
			r.OK(del)
		}},
		{"GC", func() {
			gc := r.call("GC", "", c)
			gc.Netns, gc.IfName = "", ""
			gc.Conf = rolestest.WithKeys(t, gc.Conf, map[string]any{"cni.dev/valid-attachments": []roles.AttachmentID{}})
			r.OK(gc)
		}},
		{"ADD", func() {
			r.OK(r.call("ADD", "c2", c))
			r.OK(r.call("DEL", "c2", c))
		}},
	} {
		t.Run(then.name, func(t *testing.T) {
			before := r.State(nil)
			r.spaces["c1"] = netopstest.New(t)
			r.OK(r.call("ADD", "c1", c))
			r.spaces["c1"].Change(t, "eth0", netopstest.SmallerMTU)
			r.spaces["c1"].Change(t, "eth0", netopstest.OtherMAC)
			r.spaces["c1"].Remove(t)
			then.do()
			r.same(before, "after the namespace ended and "+then.name)
		})
	}
}

// TestCardElsewhere: DEL restores the interface of a VF also while its physical function is in another namespace.
func TestCardElsewhere(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	card, err := netlink.LinkByName(r.card)
	must(t, err)
	was, err := netlink.LinkByName(r.f[0].Link)
	must(t, err)
	c := conf(r.f[0], `,"trust":"on"`)
	r.OK(r.call("ADD", "c1", c))
	r.spaces["c1"].Change(t, "eth0", netopstest.SmallerMTU)
	r.spaces["c1"].Change(t, "eth0", netopstest.OtherMAC)
	away := netopstest.New(t)
	fd, err := os.Open(away.Path())
	must(t, err)
	defer fd.Close()
	must(t, netlink.LinkSetNsFd(card, int(fd.Fd())))
	r.OK(r.call("DEL", "c1", c))
	is, err := netlink.LinkByName(r.f[0].Link)
	must(t, err)
	away.Do(t, func() error { return netlink.LinkSetNsPid(away.Link(t, r.card), os.Getpid()) })
	if a, b := is.Attrs(), was.Attrs(); a.MTU != b.MTU || a.HardwareAddr.String() != b.HardwareAddr.String() || a.Flags != b.Flags {
		t.Errorf("have %d %s %s, want %d %s %s", a.MTU, a.HardwareAddr, a.Flags, b.MTU, b.HardwareAddr, b.Flags)
	}
	pristine(t, r.card, card.Attrs().Vfs, r.f)
	must(t, netopstest.LinkUp(r.card))
	r.same(before, "after the card was back")
}

// TestRefused: an ADD that the driver or the configuration makes fail changes nothing, and says what to do. The 82576 has neither
// link_state, nor min_tx_rate, nor 802.1ad.
func TestRefused(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	for _, c := range []struct{ keys, want string }{
		{`,"vlan":100,"trust":"on","link_state":"enable"`, "state enable"},
		{`,"spoofchk":"off","min_tx_rate":10,"max_tx_rate":100`, "rate min_tx_rate 10 max_tx_rate 100"},
		{`,"vlan":100,"vlanProto":"802.1ad"`, "vlan 100 qos 0 proto 802.1ad"},
	} {
		r.mentions(r.Fail(r.call("ADD", "c1", conf(r.f[0], c.keys)), 0), c.want)
		r.same(before, "after a refused ADD with "+c.keys)
		r.OK(r.call("DEL", "c1", conf(r.f[0], c.keys)))
	}
	physical, err := os.Readlink(filepath.Join("/sys/class/net", r.card, "device"))
	must(t, err)
	card := conf(netopstest.Function{Device: filepath.Base(physical)}, "")
	r.mentions(r.Fail(r.call("ADD", "c1", card), 7), "is not a virtual function")
	r.mentions(r.Fail(r.call("ADD", "c1", `{"name":"functions","type":"sriov"}`), 7), "deviceID: is missing")
	r.mentions(r.Fail(r.call("STATUS", "", conf(netopstest.Function{Device: "0fff:00:1f.7"}, "")), 50), "does not exist")
}

// TestHeld: a VF has one owner, also with host-device. The error names its container.
func TestHeld(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	c := conf(r.f[0], "")
	device := fmt.Sprintf(`{"name":"devices","type":"host-device","pciBusID":%q}`, r.f[0].Device)
	r.OK(r.call("ADD", "holder", c))
	for _, late := range []string{c, device} {
		r.mentions(r.Fail(r.call("ADD", "late", late), 112), `taken by \"eth0\" of container \"holder\"`)
	}
	r.OK(r.call("STATUS", "", c))
	r.OK(r.call("DEL", "holder", c))
	r.OK(r.call("ADD", "holder", device))
	r.mentions(r.Fail(r.call("ADD", "late", c), 112), `taken by \"eth0\" of container \"holder\"`)
	r.OK(r.call("DEL", "holder", device))
	r.same(before, "after DEL")
}

// TestUserspace: a VF with a driver for DPDK is configured at the real card, and nothing is moved.
func TestUserspace(t *testing.T) {
	r := newRig(t)
	f := r.f[3]
	const pf, path = "pci0000:00/0000:00:1c.0/0000:03:00.0", "pci0000:00/0000:00:1c.0/0000:03:10.6"
	netopstest.HardwareTree(t)
	netopstest.Hardware{Bus: "pci", ID: "0000:03:00.0", Path: pf, Driver: "igb", Links: []string{r.card}}.Add(t)
	netopstest.Hardware{Bus: "pci", ID: "0000:03:10.6", Path: path, Driver: "vfio-pci", Of: pf, Number: f.Number}.Add(t)
	f.Device = "0000:03:10.6"
	before := r.State(nil)
	c := conf(f, `,"vlan":100,"spoofchk":"off","mac":"02:00:00:00:00:0c",`+dual)
	a := r.OK(r.call("ADD", "c1", c))
	var res roles.Result
	must(t, json.Unmarshal([]byte(a.Stdout), &res))
	if i := res.Interfaces; len(i) != 1 || i[0].Mac != "02:00:00:00:00:0c" || i[0].Mtu != 1500 || len(res.IPs) != 2 {
		t.Errorf("result is %s", a.Stdout)
	}
	check := r.call("CHECK", "c1", rolestest.WithKeys(t, c, map[string]any{"prevResult": json.RawMessage(a.Stdout)}))
	r.OK(check)
	link, err := netlink.LinkByName(r.card)
	must(t, err)
	must(t, netlink.LinkSetVfVlan(link, f.Number, 101))
	r.mentions(r.Fail(check, 0), "vlan 101")
	r.mentions(r.Fail(r.call("ADD", "c2", c), 112), `taken by \"eth0\" of container \"c1\"`)
	del := r.call("DEL", "c1", c)
	del.Netns = ""
	r.OK(del)
	r.same(before, "after DEL")
}
