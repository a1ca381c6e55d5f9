package netops_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// pairOf is a veth pair between a bridge and the container, with both ends up.
func pairOf() netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Shared: true, Name: "br0", Kind: "bridge", Up: true},
		&netops.Link{
			In: netops.Host, Name: "veth0", Kind: "veth", Master: "br0", Up: true,
			Peer: &netops.Peer{In: netops.Container, Name: "eth0"},
		},
		&netops.Link{In: netops.Container, Name: "eth0", Up: true},
	}}
}

// makePair applies pairOf in a new container.
func makePair(t *testing.T, n *netops.Net) (*netopstest.NS, *netops.Namespace, []netops.Change) {
	t.Helper()
	ns := netopstest.New(t)
	in, err := n.OpenNamespace(ns.Path())
	must(t, err)
	t.Cleanup(func() { must(t, in.Close()) })
	plan, err := n.Plan(t.Context(), pairOf(), in)
	must(t, err)
	must(t, n.Apply(t.Context(), plan, in))
	t.Cleanup(func() {
		must(t, n.Undo(context.Background(), plan.Changes, in))
		must(t, n.Undo(context.Background(), netops.SharedInverses(pairOf()), in))
	})
	return ns, in, plan.Changes
}

// TestAwaitOperation: the wait ends when the other end of a pair is set up.
func TestAwaitOperation(t *testing.T) {
	n := newNet(t, nil)
	ns, in, changes := makePair(t, n)
	must(t, n.AwaitOperation(t.Context(), changes, in))
	for _, name := range []string{"veth0", "br0"} {
		if l, err := n.Link(t.Context(), nil, name); err != nil || !l.OperUp {
			t.Errorf("link %q: %+v, %v", name, l, err)
		}
	}
	ns.Change(t, "eth0", netlink.LinkSetDown)
	ended := make(chan error, 1)
	waiter := n.Clone()
	defer func() { must(t, waiter.Close()) }()
	go func() { ended <- waiter.AwaitOperation(t.Context(), changes, in) }()
	ns.Change(t, "eth0", netlink.LinkSetUp)
	must(t, await.Next(t, ended, "the end of the wait"))
}

// TestAwaitOperationAddress: the wait ends when the kernel accepts packets for an IPv6 address. If it
// never does, the error names the address.
func TestAwaitOperationAddress(t *testing.T) {
	n := newNet(t, nil)
	ns, in, changes := makePair(t, n)
	local := func(verb string) {
		ns.Do(t, exec.Command("ip", "-6", "route", verb, "local", "fd00::2", "dev", "eth0", "table", "local").Run)
	}
	add := netops.Spec{Objects: []netops.Object{
		&netops.Addr{In: netops.Container, Link: "eth0", Address: netip.MustParsePrefix("fd00::2/64")},
	}}
	plan, err := n.Plan(t.Context(), add, in)
	must(t, err)
	must(t, n.Apply(t.Context(), plan, in))
	changes = append(changes, plan.Changes...)
	must(t, n.AwaitOperation(t.Context(), changes, in))
	if w, err := n.Way(t.Context(), in, netops.Packet{To: netip.MustParseAddr("fd00::2")}); err != nil || !w.Local {
		t.Errorf("%+v, %v", w, err)
	}
	local("del")
	if err := n.AwaitOperation(t.Context(), changes, in); err == nil || !strings.Contains(err.Error(), `address fd00::2/64 of link "eth0"`) {
		t.Errorf("an address without a local route: %v", err)
	}
	ended := make(chan error, 1)
	waiter := n.Clone()
	defer func() { must(t, waiter.Close()) }()
	go func() { ended <- waiter.AwaitOperation(t.Context(), changes, in) }()
	local("add")
	must(t, await.Next(t, ended, "the end of the wait"))
	ns.Change(t, "eth0", netlink.LinkDel)
	netopstest.ChangeHost(t, "br0", netlink.LinkDel)
	must(t, n.AwaitOperation(t.Context(), changes, in))
}

// TestAwaitOperationSTP: a bridge with STP is not waited for.
func TestAwaitOperationSTP(t *testing.T) {
	n := newNet(t, nil)
	must(t, exec.Command("ip", "link", "add", "name", "br0", "type", "bridge", "stp_state", "1").Run())
	_, in, changes := makePair(t, n)
	must(t, n.AwaitOperation(t.Context(), changes, in))
	if l, err := n.Link(t.Context(), nil, "br0"); err != nil || l.OperUp {
		t.Errorf("the bridge is in operation before its port forwards: %+v, %v", l, err)
	}
}

// TestAwaitOperationInVain: the wait for a pair that stays down ends with an error that names
// the link. A link that was deleted, and a pair that is not set up, are not waited for.
func TestAwaitOperationInVain(t *testing.T) {
	n := newNet(t, nil)
	ns, in, changes := makePair(t, n)
	ns.Change(t, "eth0", netlink.LinkSetDown)
	err := n.AwaitOperation(t.Context(), changes, in)
	if err == nil || !strings.Contains(err.Error(), `link "veth0"`) {
		t.Errorf("a pair that stays down: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.AwaitOperation(ended, changes, in); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that has ended: %v", err)
	}
	must(t, n.AwaitOperation(t.Context(), changes[:len(changes)-1], in))
	ns.Change(t, "eth0", netlink.LinkDel)
	netopstest.ChangeHost(t, "br0", netlink.LinkDel)
	must(t, n.AwaitOperation(t.Context(), changes, in))
}

// BenchmarkAwaitOperation measures the wait for a pair and a bridge that are in operation.
func BenchmarkAwaitOperation(b *testing.B) {
	n := newNet(b, nil)
	ns := netopstest.New(b)
	in, err := n.OpenNamespace(ns.Path())
	if err != nil {
		b.Fatal(err)
	}
	plan, err := n.Plan(b.Context(), pairOf(), in)
	if err == nil {
		err = n.Apply(b.Context(), plan, in)
	}
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := n.AwaitOperation(b.Context(), plan.Changes, in); err != nil {
			b.Fatal(err)
		}
	}
}
