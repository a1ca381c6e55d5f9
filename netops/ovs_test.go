package netops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/ovs"
)

// ovsRig is Open vSwitch with a bridge, and the port of a link.
func ovsRig(t *testing.T) (*ovs.Switch, *netops.Net, *netops.OVSPort) {
	t.Helper()
	s := ovs.Start(t)
	s.Bridge(t, "ovs0", "02:00:00:00:0f:01")
	n := netops.New(netops.Options{})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		l, err := netlink.LinkByName("veth-ovs")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err != nil {
			t.Error(err)
		}
	})
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth-ovs", MTU: 1500}, PeerName: "peer-ovs"})
	if err != nil {
		t.Fatal(err)
	}
	tag := 100
	return s, n, &netops.OVSPort{
		Socket: s.Socket, Bridge: "ovs0", Link: "veth-ovs", Owner: "cnibox:0123456789abcdef", Tag: &tag, Wait: 30_000,
		PortIDs: map[string]string{"contIface": "eth0"}, InterfaceIDs: map[string]string{"iface-id": "lsp"},
	}
}

func specOf(objects ...netops.Object) netops.Spec { return netops.Spec{Objects: objects} }

// TestOVSPort: each difference is found, and an inverse deletes only a port with the mark.
func TestOVSPort(t *testing.T) {
	s, n, p := ovsRig(t)
	s.Bridge(t, "ovs1", "02:00:00:00:0f:02")
	ctx := t.Context()
	before := s.Ports(t, "ovs0", "ovs1")
	plan, err := n.Plan(ctx, specOf(p), nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(plan.Changes)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []netops.Change
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, nil); err != nil {
		t.Fatal(err)
	}
	differs := func(what string, want ...string) {
		t.Helper()
		diffs, err := n.Verify(ctx, specOf(p), nil)
		var have []string
		for _, d := range diffs {
			have = append(have, d.Want+" | "+d.Have)
		}
		if diff := cmp.Diff(want, have); diff != "" || err != nil {
			t.Errorf("%s: %v, -want +have:\n%s", what, err, diff)
		}
	}
	differs("as it was made")
	for _, c := range []struct{ change, back, want string }{
		{"set port veth-ovs tag=101", "set port veth-ovs tag=100", "tag 100 | tag 101"},
		{"clear port veth-ovs tag", "set port veth-ovs tag=100", "tag 100 | tag none"},
		{"set port veth-ovs trunks=7,5", "clear port veth-ovs trunks", "trunks  | trunks 5,7"},
		{"set port veth-ovs vlan_mode=dot1q-tunnel", "set port veth-ovs vlan_mode=access", "vlan_mode access | vlan_mode dot1q-tunnel"},
		{"set interface veth-ovs external_ids:iface-id=x", "set interface veth-ovs external_ids:iface-id=lsp", "external_ids:iface-id lsp | external_ids:iface-id x"},
		{"set interface veth-ovs type=system", "clear interface veth-ovs type", "type  | type system"},
		{"set port veth-ovs external_ids:owner=x", "set port veth-ovs external_ids:owner=\"cnibox:0123456789abcdef\"", "present | absent"},
	} {
		s.Vsctl(t, strings.Fields(c.change)...)
		differs(c.change, c.want)
		s.Vsctl(t, strings.Fields(strings.ReplaceAll(c.back, "clear interface veth-ovs type", "set interface veth-ovs type=\"\""))...)
		differs(c.back)
	}
	if _, err := n.Plan(ctx, specOf(p), nil); err != nil { // a port with the mark is replaced
		t.Error(err)
	}
	other := *p
	other.Owner = "cnibox:fedcba9876543210"
	if _, err := n.Plan(ctx, specOf(&other), nil); !errors.Is(err, netops.ErrExists) {
		t.Errorf("another owner's port: %v", err)
	}
	if err := n.Remove(ctx, specOf(&other), nil); err != nil {
		t.Error(err)
	}
	differs("after another owner's inverse")
	for range 2 {
		if err := n.Undo(ctx, recorded, nil); err != nil {
			t.Error(err)
		}
		if after := s.Ports(t, "ovs0", "ovs1"); after != before {
			t.Errorf("after the inverse:\n%s\nbefore:\n%s", after, before)
		}
	}
	differs("after the inverse", "present | absent")
}

// TestOVSReplaced: a port that an earlier attachment left is replaced in one transaction.
func TestOVSReplaced(t *testing.T) {
	s, n, p := ovsRig(t)
	for tag := range 2 {
		p.Tag = &tag
		if err := n.Ensure(t.Context(), specOf(p), nil); err != nil {
			t.Fatal(err)
		}
		if have := s.Vsctl(t, "get", "port", p.Link, "tag"); have != fmt.Sprint(tag) {
			t.Errorf("tag is %s, want %d", have, tag)
		}
	}
}

// TestOVSUndone: a port that ovs-vswitchd does not take is deleted again.
func TestOVSUndone(t *testing.T) {
	s, n, p := ovsRig(t)
	s.StopDaemon()
	p.Wait = 1
	if err := n.Ensure(t.Context(), specOf(p), nil); !errors.Is(err, netops.ErrBusy) || !strings.Contains(err.Error(), "ovs-vswitchd has not added it") {
		t.Errorf("without ovs-vswitchd: %v", err)
	}
	s.StartDaemon(t)
	if ports := s.Vsctl(t, "list-ports", "ovs0"); ports != "" {
		t.Errorf("ports %q are left", ports)
	}
}

// TestOVSFrozen: with a database server that does not answer, a call ends with its context, and the inverse fails.
func TestOVSFrozen(t *testing.T) {
	s, n, p := ovsRig(t)
	if err := n.Ensure(t.Context(), specOf(p), nil); err != nil {
		t.Fatal(err)
	}
	thaw := s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := n.Plan(ctx, specOf(p), nil); !errors.Is(err, netops.ErrBusy) || !strings.Contains(err.Error(), "ovsdb-server on "+s.Socket) {
		t.Errorf("a frozen server: %v", err)
	}
	thaw()
	s.StopDatabase()
	for uncertain, want := range map[bool]error{true: nil, false: netops.ErrBusy} {
		p.Uncertain = uncertain
		if err := n.Remove(t.Context(), specOf(p), nil); !errors.Is(err, want) {
			t.Errorf("uncertain %v: without a server the inverse returns %v", uncertain, err)
		}
	}
	s.StartDatabase(t)
	if err := n.Remove(t.Context(), specOf(p), nil); err != nil { // over a new connection
		t.Error(err)
	}
}

// TestOVSHostile: what a hostile server sends is an error without control characters.
func TestOVSHostile(t *testing.T) {
	for _, answer := range []string{
		"\x1b[2J", `{"id":1,"result":[{"error":"\u001b[2J","details":"` + strings.Repeat("x", 1000) + `"}]}`, `{"id":1,"result":null,"error":"\u001b[2J"}`,
		strings.Repeat(`{"method":"echo","params":[],"id":null}`, 100),
	} {
		dir, err := os.MkdirTemp("", "ovs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		l, err := net.Listen("unix", filepath.Join(dir, "db.sock"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := l.Accept(); err == nil {
				_, _ = c.Write([]byte(answer))
				_ = c.Close()
			}
		}()
		n := netops.New(netops.Options{})
		err = n.OVSBridge(t.Context(), l.Addr().String(), "br1")
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 500 {
			t.Errorf("%.40q: %v", answer, err)
		}
		_, _ = n.Close(), l.Close()
		await.Next(t, done, "the end of the server")
	}
}

// TestOVSFilters: the node's packet filter does not see the packets of a port, so network policies cannot be enforced there.
func TestOVSFilters(t *testing.T) {
	pair := &netops.Link{In: netops.Host, Name: "veth1", Kind: "veth", Peer: &netops.Peer{In: netops.Container, Name: "eth0"}}
	with, without := specOf(pair, &netops.OVSPort{Link: "veth1"}), specOf(pair)
	if with.NodeFilters() || !without.NodeFilters() {
		t.Errorf("with a port %v, without %v", with.NodeFilters(), without.NodeFilters())
	}
}
