package takeover

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

const (
	// gone is the container that is detached, stays the one that remains.
	gone  = "gone-container"
	stays = "stays-container"
)

// hostLocal is the reference's IPAM plugin with its pool in the node's directory. For IPv6 addresses all reference plugins but
// bridge wait some seconds, so only bridge has one.
func (n *node) hostLocal(typ any) object {
	ranges := [][]object{{{"subnet": "10.1.0.0/24"}}}
	if typ == "bridge" {
		ranges = append(ranges, []object{{"subnet": "fd00:1::/64"}})
	}
	return object{
		"type": "host-local", "dataDir": filepath.Join(n.Dir(), "networks"), "ranges": ranges,
		"routes": []object{{"dst": "0.0.0.0/0"}},
	}
}

// attached is an interface plugin's configuration with which the reference attaches containers.
type attached struct {
	name string
	conf object
	// kind is the kernel's name of the device type, if some kernels lack it.
	kind string
	// alone means that only one container can exist, whose device ends with its namespace.
	alone bool
}

func everyInterface() []attached {
	bridge := func(keys object) object {
		keys["type"], keys["bridge"], keys["isGateway"] = "bridge", "br0", true
		return keys
	}
	return []attached{
		{name: "bridge", conf: bridge(object{"hairpinMode": true, "mtu": 1400})},
		{name: "bridge iptables", conf: bridge(object{"ipMasq": true, "ipMasqBackend": "iptables"})},
		{name: "bridge nftables", conf: bridge(object{"ipMasq": true, "ipMasqBackend": "nftables"})},
		{name: "ptp iptables", conf: object{"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables"}},
		{name: "ptp nftables", conf: object{"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}},
		{name: "macvlan", conf: object{"type": "macvlan", "master": "lan0"}},
		{name: "ipvlan", conf: object{"type": "ipvlan", "master": "lan0"}, kind: "ipvlan"},
		{name: "vlan", conf: object{"type": "vlan", "master": "lan0", "vlanId": 7}, kind: "vlan", alone: true},
		{name: "dummy", conf: object{"type": "dummy"}, kind: "dummy"},
		{name: "tap", conf: object{"type": "tap"}},
		{name: "host-device", conf: object{"type": "host-device", "device": "nic0"}, alone: true},
	}
}

// detachment is one form of the call that detaches a container.
type detachment struct {
	name   string
	detach func(t *testing.T, c *container)
	// ends means that the namespace no longer exists.
	ends bool
	// first means that the call is cnibox's first one on the node.
	first bool
}

func everyWay() []detachment {
	return []detachment{
		{name: "DEL", detach: func(_ *testing.T, c *container) { c.del(ours, c.ns.Path()) }},
		{name: "DEL with an empty netns", detach: func(_ *testing.T, c *container) { c.del(ours, "") }},
		{name: "DEL without prevResult", detach: func(_ *testing.T, c *container) {
			c.forgotten = true
			c.del(ours, c.ns.Path())
		}},
		{name: "DEL without prevResult, by the cache", first: true, detach: func(_ *testing.T, c *container) {
			c.Cache(c.call("ADD", 0, nil), string(c.result))
			c.forgotten = true
			c.del(ours, c.ns.Path())
		}},
		{name: "DEL of what is gone", ends: true, detach: func(t *testing.T, c *container) {
			c.ns.Remove(t)
			c.del(ours, c.ns.Path())
		}},
		{name: "DEL of what is gone, without anything", ends: true, detach: func(t *testing.T, c *container) {
			c.ns.Remove(t)
			c.forgotten = true
			c.del(ours, "")
		}},
		{name: "GC of what is gone", ends: true, detach: func(t *testing.T, c *container) {
			c.ns.Remove(t)
			c.gc(roles.AttachmentID{ContainerID: stays, IfName: "eth0"})
		}},
	}
}

// prepare makes the links that configurations name, and attaches and detaches one container with the reference, so that objects that
// the reference never removes exist before the test compares states.
func prepare(t *testing.T, n *node) {
	t.Helper()
	for _, names := range [][2]string{{"lan0", "lan1"}, {"nic0", "nic1"}} {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: names[0]}, PeerName: names[1]}
		must(t, netlink.LinkAdd(l))
		t.Cleanup(func() {
			if l, err := netlink.LinkByName(names[1]); err == nil { // the other one may be gone in a container
				must(t, netlink.LinkDel(l))
			}
		})
	}
	lan, err := netlink.LinkByName("lan0")
	must(t, err)
	must(t, netlink.LinkSetUp(lan))
	t.Cleanup(func() { clear(t) })
	first := n.container("first-container").add(theirs)
	first.del(theirs, first.ns.Path())
	dropTables()
}

// dropTables deletes the nftables tables that the reference leaves empty; cnibox deletes them with the last rule.
func dropTables() {
	for _, table := range []string{"inet cni_plugins_masquerade", "ip cni_hostport", "ip6 cni_hostport"} {
		_ = exec.Command("nft", "delete table "+table).Run()
	}
}

// clear removes what the reference, or a failed test, leaves on the host.
func clear(t *testing.T) {
	t.Helper()
	links, err := netlink.LinkList()
	must(t, err)
	for _, l := range links {
		if l.Attrs().Name == "br0" || l.Type() == "ifb" {
			must(t, netlink.LinkDel(l))
		}
	}
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, os.RemoveAll("/run/cni"))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestInterfaces: CHECK of cnibox accepts a container that the reference attached. When cnibox detaches it, with or without
// prevResult and namespace, nothing of it remains, and another container keeps everything.
func TestInterfaces(t *testing.T) {
	for _, a := range everyInterface() {
		for _, w := range everyWay() {
			t.Run(a.name+"/"+w.name, func(t *testing.T) { takeOver(t, a, w) })
		}
	}
}

func takeOver(t *testing.T, a attached, w detachment) {
	if a.kind != "" {
		netopstest.NeedKind(t, a.kind)
	}
	if a.alone && w.ends && a.kind == "" {
		t.Skip("the kernel deletes a virtual device with its namespace")
	}
	n := newNode(t, a.conf)
	a.conf["ipam"] = n.hostLocal(a.conf["type"])
	prepare(t, n)
	before := n.state()
	other := n.container(stays)
	if !a.alone {
		other.add(theirs)
	}
	c := n.detachOne(t, w)
	if !a.alone {
		other.check(ours)
		other.check(theirs)
		other.del(ours, other.ns.Path())
	}
	c.gc()
	n.same(before, "at the end")
}

// detachOne attaches a container with the reference plugins, detaches it, and compares the state with the one before.
func (n *node) detachOne(t *testing.T, w detachment) *container {
	t.Helper()
	occupied := n.state()
	c := n.container(gone)
	empty := c.ns.Snapshot(t)
	c.add(theirs)
	c.check(theirs)
	if !w.first {
		c.check(ours)
	}
	w.detach(t, c)
	if !w.ends {
		c.ns.Reset(t)
		if now := c.ns.Snapshot(t); now != empty {
			t.Errorf("in the container:\n%s", difference(empty, now))
		}
	}
	n.same(occupied, w.name)
	if text := n.State(nil); strings.Contains(text, gone) {
		t.Errorf("the store has\n%s", text)
	}
	return c
}
