package netops_test

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// apart is the name of the namespace in these tests.
const apart = "netops-apart"

// wantedApart returns the shared objects of a namespace with a macvlan of the
// host's link, and an attachment in the namespace.
func wantedApart() (shared, own netops.Spec) {
	in := netops.Named(apart)
	shared.Add(
		&netops.Netns{Name: apart, Alias: "cnibox:shared"},
		&netops.Sysctl{In: in, Shared: true, Key: "net/ipv4/ip_forward", Value: "1"},
		&netops.Link{In: in, Shared: true, Name: "lo", Up: true}, // the kernel rejects every gateway address while lo is down
		&netops.Link{In: in, Shared: true, Name: "up0", Kind: "macvlan", Mode: "bridge", Alias: "cnibox:shared", Up: true, Parent: "lan0", ParentIn: netops.Host},
		&netops.Route{In: in, Shared: true, Link: "up0", Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("169.254.2.1"), OnLink: true, Table: 2},
		&netops.Neigh{In: in, Shared: true, Link: "up0", IP: netip.MustParseAddr("169.254.2.1"), MAC: "12:34:56:78:9a:bc"},
		&netops.Rule{In: in, Shared: true, Family: unix.AF_INET, Priority: 100, IIF: "up0", Table: unix.RT_TABLE_MAIN},
		&netops.Rule{In: in, Shared: true, Family: unix.AF_INET, Priority: 90, To: netip.MustParsePrefix("168.63.129.16/32"), IPProto: unix.IPPROTO_TCP, DstPort: 80, Prohibit: true},
	)
	own.Add(
		&netops.Link{In: in, Name: "pod0", Kind: "veth", Alias: testLabel, Peer: &netops.Peer{In: netops.Container, Name: "eth0"}},
		&netops.Link{In: in, Name: "pod0", Up: true},
		&netops.Route{In: in, Link: "pod0", Dst: netip.MustParsePrefix("10.0.0.9/32")},
	)
	return shared, own
}

func both(a, b netops.Spec) (all netops.Spec) {
	all.Add(a.Objects...)
	all.Add(b.Objects...)
	return all
}

// TestNetns checks the life of a named namespace. Its objects are planned before
// it exists, then created and verified. An attachment's own objects are deleted
// with and without its container. The namespace and its links are deleted only
// when it contains no attachment.
func TestNetns(t *testing.T) {
	netopstest.Master(t, "lan0")
	n, ctx := newNet(t, nil), context.Background()
	before := netopstest.Snapshot(t)
	shared, own := wantedApart()
	all := both(shared, own)
	t.Cleanup(func() { clean(t, own); undo(t, n, netops.SharedInverses(shared)) })

	if d, err := n.Verify(ctx, shared, nil); err != nil || len(d) != len(shared.Objects) {
		t.Errorf("before: %v, %v, want all absent", d, err)
	}
	ns := open(t, n, netopstest.New(t))
	made := ensure(t, n, all, ns)
	if again := ensure(t, n, shared, nil); len(again) != 0 {
		t.Errorf("shared made again: %v", again)
	}
	if d, err := n.Verify(ctx, all, ns); err != nil || len(d) != 0 {
		t.Errorf("after: %v, %v", d, err)
	}
	if have := run(t, "ip", "-n", apart, "rule"); !strings.Contains(have, "from all to 168.63.129.16 ipproto tcp dport 80 prohibit") {
		t.Errorf("rules are\n%s", have)
	}
	second := open(t, n, netopstest.New(t))
	if _, err := n.Plan(ctx, own, second); err == nil {
		t.Error("a link that is there is planned again")
	}

	undo(t, n, netops.SharedInverses(shared))
	if d, err := n.Verify(ctx, all, ns); err != nil || len(d) != 0 {
		t.Errorf("taken from under an attachment: %v, %v", d, err)
	}
	if err := n.Undo(ctx, made, nil); err != nil { // the container is gone
		t.Fatal(err)
	}
	if d, err := n.Verify(ctx, shared, nil); err != nil || len(d) != 0 {
		t.Errorf("an attachment took with it what is shared: %v, %v", d, err)
	}
	for range 2 {
		undo(t, n, netops.SharedInverses(shared))
	}
	if err := n.Undo(ctx, made, nil); err != nil {
		t.Errorf("undone when the namespace is gone: %v", err)
	}
	if have := netopstest.Snapshot(t); have != before {
		t.Errorf("left:\n%s\nbefore:\n%s", have, before)
	}
}

// TestNetnsRemains checks that the remains of a killed process cause no error: a
// plain file instead of a namespace, and a link without its label.
func TestNetnsRemains(t *testing.T) {
	netopstest.Master(t, "lan0")
	n := newNet(t, nil)
	before := netopstest.Snapshot(t)
	shared, _ := wantedApart()
	must(t, os.MkdirAll(netops.NamespaceDir, 0o755))
	must(t, os.WriteFile(netops.NamespaceDir+"/"+apart, nil, 0o444))
	undo(t, n, netops.SharedInverses(shared))
	if _, err := os.Lstat(netops.NamespaceDir + "/" + apart); err == nil {
		t.Error("the plain file is left")
	}
	must(t, os.WriteFile(netops.NamespaceDir+"/"+apart, nil, 0o444))
	ensure(t, n, shared, nil)
	inApart(t, n, func() error {
		l, err := netlink.LinkByName("up0")
		if err == nil {
			err = netlink.LinkSetAlias(l, "")
		}
		return err
	})
	undo(t, n, netops.SharedInverses(shared))
	if have := netopstest.Snapshot(t); have != before {
		t.Errorf("left:\n%s\nbefore:\n%s", have, before)
	}
}

// TestNetnsWithOtherLink checks that a namespace is not changed while it contains
// another program's link that is up.
func TestNetnsWithOtherLink(t *testing.T) {
	netopstest.Master(t, "lan0")
	n := newNet(t, nil)
	shared, _ := wantedApart()
	ensure(t, n, shared, nil)
	theirs := func(do func(netlink.Link) error) {
		t.Helper()
		inApart(t, n, func() error {
			l, err := netlink.LinkByName("theirs")
			if err == nil {
				err = do(l)
			}
			return err
		})
	}
	inApart(t, n, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "theirs"}, PeerName: "theirs2"})
	})
	theirs(netlink.LinkSetUp)
	undo(t, n, netops.SharedInverses(shared))
	if d, err := n.Verify(context.Background(), shared, nil); err != nil || len(d) != 0 {
		t.Errorf("removed another program's namespace: %v, %v", d, err)
	}
	theirs(netlink.LinkSetDown)
	undo(t, n, netops.SharedInverses(shared))
	if _, err := os.Lstat(netops.NamespaceDir + "/" + apart); err == nil {
		t.Error("the namespace is left")
	}
}

func undo(t *testing.T, n *netops.Net, changes []netops.Change) {
	t.Helper()
	must(t, n.Undo(context.Background(), changes, nil))
}

func inApart(t *testing.T, n *netops.Net, f func() error) {
	t.Helper()
	ns, err := n.OpenNamespace(netops.NamespaceDir + "/" + apart)
	must(t, err)
	defer ns.Close()
	must(t, ns.Run(f))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
