package agent_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// guest is a pod of a virtual machine with the interface net1 on a network whose addresses move with it.
type guest struct {
	*node
	call rolestest.Call
	ns   *netopstest.NS
}

func (n *node) guest(id, name string) *guest {
	ns := netopstest.New(n.w.t)
	return &guest{n, rolestest.Call{Type: "macvlan", ID: id, Netns: ns.Path(), IfName: "net1", Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=vms;K8S_POD_NAME=" + name, Conf: `{
		"cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "master": "eth1", "mode": "bridge",
		"ipam": {"type": "range", "range": "192.168.2.0/24", "ipRanges": [{"range": "fd00:2::/64"}], "sticky": {"ttl": "never"}}}`}, ns}
}

// run makes a call on the node.
func (g *guest) run(verb string) (out []byte, err error) {
	g.call.Verb = verb
	cmd := g.Cmd(g.call)
	g.node.ns.Do(g.w.t, func() error {
		out, err = cmd.Output()
		return nil
	})
	return out, err
}

func (g *guest) add() (addrs []netip.Addr) {
	g.w.t.Helper()
	var out []byte
	var err error
	g.w.within(func() bool { // the agent may still start
		out, err = g.run("ADD")
		return err == nil || !strings.Contains(string(out), "does not answer")
	}, func() string { return string(out) })
	var r roles.Result
	if err != nil || json.Unmarshal(out, &r) != nil {
		g.w.t.Fatalf("%v: %s, agent: %s", err, out, g.log)
	}
	for _, ip := range r.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	return addrs
}

func (g *guest) del() {
	g.w.t.Helper()
	if out, err := g.run("DEL"); err != nil {
		g.w.t.Fatalf("%v: %s", err, out)
	}
}

// mac returns the MAC of the guest's interface.
func (g *guest) mac() (mac string) {
	g.w.t.Helper()
	var links []struct{ Address string }
	g.ns.Do(g.w.t, func() error { return json.Unmarshal([]byte(ip(g.w.t, "-j link show net1")), &links) })
	return links[0].Address
}

// TestMigration: while two nodes have the addresses of one virtual machine, the second one does not announce them. It
// does when the first one's hold ends, and only then. A third node gets none.
func TestMigration(t *testing.T) {
	w := newWorld(t, 3, `{}`)
	for _, n := range w.nodes {
		n.run(n.agent("-ranges-only"))
	}
	next := netopstest.Announcements(t, "fabric")
	markers := 0
	// announced returns the announcements until that of a new machine, which shows that the capture works.
	announced := func() (all []netopstest.Announcement) {
		t.Helper()
		markers++
		marker := w.nodes[1].guest("marker", "marker"+strings.Repeat("x", markers))
		addrs := marker.add()
		for len(addrs) > 0 {
			a := next()
			if !a.Addr.IsValid() {
				t.Fatalf("the marker is not announced; before it: %v", all)
			}
			if i := slices.Index(addrs, a.Addr); i >= 0 {
				addrs = slices.Delete(addrs, i, i+1)
			} else if !a.Addr.IsLinkLocalUnicast() {
				all = append(all, a)
			}
		}
		marker.del()
		return all
	}
	source, target, third := w.nodes[0].guest("source", "vm"), w.nodes[1].guest("target", "vm"), w.nodes[2].guest("third", "vm")
	addrs := source.add()
	for _, a := range announced() {
		if !slices.Contains(addrs, a.Addr) || a.MAC != source.mac() {
			t.Errorf("%v, want %v of the source", a, addrs)
		}
	}
	if got := target.add(); !slices.Equal(got, addrs) {
		t.Fatalf("the target has %v, the source %v", got, addrs)
	}
	if out, err := third.run("ADD"); err == nil || !strings.Contains(string(out), "the nodes k8s-dev-0 and k8s-dev-1 have") {
		t.Errorf("a third node: %v, %s", err, out)
	}
	w.nodes[1].kill() // also after a restart of the target's agent
	w.nodes[1].run(w.nodes[1].agent("-ranges-only"))
	if all := announced(); len(all) > 0 {
		t.Errorf("announced before the switch: %v", all)
	}
	source.del()
	seen := map[netopstest.Announcement]bool{}
	for len(seen) < len(addrs) {
		a := next()
		if a.Addr.IsLinkLocalUnicast() {
			continue
		}
		if seen[a] || a.MAC != target.mac() || !slices.Contains(addrs, a.Addr) {
			t.Fatalf("at the switch: %v, agent: %s", a, w.nodes[1].log)
		}
		seen[a] = true
	}
	if got := third.add(); !slices.Equal(got, addrs) {
		t.Errorf("the next target has %v", got)
	}
	if all := announced(); len(all) > 0 {
		t.Errorf("announced again: %v", all)
	}
}
