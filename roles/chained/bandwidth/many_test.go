package bandwidth_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// reference is a call of the reference plugin, which test/peers/reference
// builds.
func (p *pod) reference(verb, ifName, plugin, prev string) rolestest.Answer {
	p.t.Helper()
	path, err := filepath.Abs("../../../bin/peers/bandwidth")
	must(p.t, err)
	if _, err := os.Stat(path); err != nil {
		p.t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	own := filepath.Join(p.PluginDir(), "reference-bandwidth")
	if err := os.Symlink(path, own); err != nil && !errors.Is(err, os.ErrExist) {
		p.t.Fatal(err)
	}
	c := p.call(verb, ifName, plugin, prev)
	c.Type = filepath.Base(own)
	return p.Run(c)
}

// ifbs are the names of the ifb interfaces that limit what containers send.
func ifbs(t *testing.T) []string {
	t.Helper()
	all, err := netlink.LinkList()
	must(t, err)
	var names []string
	for _, l := range all {
		if l.Type() == "ifb" {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestTwoAttachments limits two interfaces of one container on one network. The
// reference plugin cannot: its ifb's name depends only on the network and the
// container. The test includes its scenarios "several host veths" and "limit
// only on restricted veth when several adapters".
func TestTwoAttachments(t *testing.T) {
	p := newPod(t)
	first, limited := p.add("eth0", both)
	_, second := p.add("eth1", both)
	third := p.OK(p.call("ADD", "eth2", bridge, "")).Stdout
	if have := ifbs(t); len(have) != 2 {
		t.Fatalf("ifbs: %q, want two", have)
	}
	free, err := netlink.LinkByName(result(t, third).Interfaces[1].Name)
	must(t, err)
	qdiscs, err := netlink.QdiscList(free)
	must(t, err)
	if slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
		t.Errorf("the interface without limits has %v", qdiscs)
	}
	p.OK(p.call("DEL", "eth1", both, second))
	p.OK(p.call("DEL", "eth1", bridge, second))
	p.OK(p.call("CHECK", "eth0", both, limited))
	// prevResult may list more interfaces of the host: here eth2's is the last
	// one.
	many := result(t, first)
	many.Interfaces = append(many.Interfaces, result(t, third).Interfaces[1])
	raw, err := json.Marshal(many)
	must(t, err)
	p.OK(p.call("DEL", "eth0", both, limited))
	relimited := p.OK(p.call("ADD", "eth0", both, string(raw))).Stdout
	if have := tbf(t, hostLink(t, p.ns)); have.Rate != 1_000_000 {
		t.Errorf("eth0 is limited to %d", have.Rate)
	}
	p.OK(p.call("DEL", "eth0", both, relimited))

	fourth := p.OK(p.call("ADD", "eth3", bridge, "")).Stdout
	if a := p.reference("ADD", "eth0", both, first); a.Code != 0 {
		t.Fatalf("the reference's first ADD: %s", a.Stdout)
	}
	if a := p.reference("ADD", "eth3", both, fourth); a.Code == 0 {
		t.Error("the reference's second ADD succeeds")
	}
	p.reference("DEL", "eth0", both, first)
}

// TestOtherClsact limits an interface on which another program has a clsact
// qdisc with a filter (#894). The reference fails there. Our verbs never change
// the other program's objects.
func TestOtherClsact(t *testing.T) {
	p := newPod(t)
	attached := p.OK(p.call("ADD", "eth0", bridge, "")).Stdout
	l := hostLink(t, p.ns)
	attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}
	must(t, netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: attrs}))
	must(t, netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: 0x0800},
		Actions:     []netlink.Action{&netlink.MirredAction{MirredAction: netlink.TCA_EGRESS_MIRROR, Ifindex: l.Attrs().Index}},
		Sel:         &netlink.TcU32Sel{Nkeys: 1, Flags: 1, Keys: []netlink.TcU32Key{{Mask: 0xffffffff, Val: 0xc0000201, Off: 16}}},
	}))
	before := netopstest.Snapshot(t)
	if a := p.reference("ADD", "eth0", both, attached); a.Code == 0 {
		t.Error("the reference's ADD succeeds")
	}
	p.reference("DEL", "eth0", both, attached)
	if tbfs, err := netlink.QdiscList(l); err != nil || slices.ContainsFunc(tbfs, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
		must(t, err)
		must(t, netlink.QdiscDel(tbf(t, l))) // the reference leaves it
	}
	limited := p.OK(p.call("ADD", "eth0", both, attached)).Stdout
	p.OK(p.call("CHECK", "eth0", both, limited))
	p.OK(p.call("DEL", "eth0", both, limited))
	if have := netopstest.Snapshot(t); have != before {
		t.Errorf("after DEL:\n%s\nbefore:\n%s", have, before)
	}

	must(t, netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(9, 0)},
		Rate:       1000, Limit: 1000, Buffer: 100_000_000,
	}))
	before = netopstest.Snapshot(t)
	if a := p.Fail(p.call("ADD", "eth0", both, attached), 0); !strings.Contains(a.Stdout, "tbf 9:") {
		t.Errorf("a root qdisc of another program: %s", a.Stdout)
	}
	if have := netopstest.Snapshot(t); have != before {
		t.Errorf("after a refused ADD:\n%s\nbefore:\n%s", have, before)
	}
}

// TestNotAVeth is the reference's scenarios "no peer", "empty prevResult" and
// "peer not listed".
func TestNotAVeth(t *testing.T) {
	p := newPod(t)
	attached := p.OK(p.call("ADD", "eth0", bridge, "")).Stdout
	p.ns.Do(t, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}})
	})
	unlisted := result(t, attached)
	unlisted.Interfaces = []*roles.ResultInterface{{Name: "veth0"}, {Name: unlisted.Interfaces[1].Name, Sandbox: p.ns.Path()}}
	unlisted.IPs = nil
	raw, err := json.Marshal(unlisted)
	must(t, err)
	before := netopstest.Snapshot(t)
	for _, c := range []struct{ ifName, prev, want string }{
		{"eth1", attached, "kind \\\"bridge\\\""},
		{"eth2", attached, "eth2"},
		{"eth0", "", "prevResult"},
		{"eth0", `{"cniVersion":"1.1.0"}`, "prevResult.interfaces"},
		{"eth0", string(raw), "prevResult.interfaces"},
	} {
		if a := p.Fail(p.call("ADD", c.ifName, both, c.prev), 0); !strings.Contains(a.Stdout, c.want) {
			t.Errorf("%s with %s: %s, want %s", c.ifName, c.prev, a.Stdout, c.want)
		}
	}
	if have := netopstest.Snapshot(t); have != before {
		t.Errorf("after refused ADDs:\n%s\nbefore:\n%s", have, before)
	}
}

// TestTakeOver checks and removes the reference plugin's objects. Its ifb interface stays
// while it serves another interface of the container.
func TestTakeOver(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprint("namespace gone ", gone), func(t *testing.T) {
			p := newPod(t)
			attached := p.OK(p.call("ADD", "eth0", bridge, "")).Stdout
			other := p.OK(p.call("ADD", "eth1", bridge, "")).Stdout
			a := p.reference("ADD", "eth0", both, attached)
			if a.Code != 0 {
				t.Fatalf("the reference's ADD: %s", a.Stdout)
			}
			p.OK(p.call("CHECK", "eth0", both, a.Stdout))
			must(t, netlink.QdiscChange(func() netlink.Qdisc { q := tbf(t, hostLink(t, p.ns)); q.Rate++; return q }()))
			p.Fail(p.call("CHECK", "eth0", both, a.Stdout), 0)
			p.OK(p.call("DEL", "eth1", both, other))
			if have := ifbs(t); len(have) != 1 {
				t.Fatalf("after DEL of another interface: %q", have)
			}
			del := p.call("DEL", "eth0", both, a.Stdout)
			if gone {
				p.ns.Remove(t)
			}
			p.OK(del)
			p.OK(del)
			if have := ifbs(t); len(have) != 0 {
				t.Errorf("after DEL: %q", have)
			}
		})
	}
}

// TestLostRecord: DEL without a record removes the objects that ADD made, and no others.
func TestLostRecord(t *testing.T) {
	p := newPod(t)
	attached, limited := p.add("eth0", both)
	_, kept := p.add("eth1", both)
	p.Forget()
	p.OK(p.call("DEL", "eth0", both, ""))
	if have := ifbs(t); len(have) != 1 || have[0] == result(t, limited).Interfaces[3].Name {
		t.Errorf("after DEL: %q", have)
	}
	left, err := netlink.FilterList(hostLink(t, p.ns), netlink.HANDLE_MIN_INGRESS)
	if err != nil || len(left) != 0 {
		t.Errorf("eth0's packets are still redirected to a missing interface: %v, %v", left, err)
	}
	// The interface is as it was before, and can be limited again.
	relimited := p.OK(p.call("ADD", "eth0", both, attached)).Stdout
	p.OK(p.call("CHECK", "eth0", both, relimited))
	p.OK(p.call("CHECK", "eth1", both, kept))
	p.OK(p.call("DEL", "eth0", both, relimited))
	p.OK(p.call("DEL", "eth1", both, kept))
	if have := ifbs(t); len(have) != 0 {
		t.Errorf("in the end: %q", have)
	}
}
