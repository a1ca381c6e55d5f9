package netops_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// movable creates dev7 on the host, up, with an alias and an MTU. It also
// creates an eth0 on the host, so that the move must avoid that name.
func movable(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "add", "par0", "mtu", "1450", "up", "type", "bridge")
	t.Cleanup(func() { run(t, "ip", "link", "del", "par0") }) // deletes dev7 too
	run(t, "ip", "link", "add", "link", "par0", "dev7", "address", "02:00:00:00:00:07", "mtu", "1400", "up", "type", "macvlan")
	run(t, "ip", "link", "set", "dev7", "alias", "an admin's")
	run(t, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0p")
	t.Cleanup(func() { run(t, "ip", "link", "del", "eth0") })
}

func moveSpec() netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Move{From: netops.Host, Name: "dev7", To: netops.Container, As: "eth0", Alias: testLabel + " dev7"},
		&netops.Link{In: netops.Container, Name: "eth0", MTU: 1300, Up: true},
	}}
}

// moved applies moveSpec and returns the changes as the store returns them.
func moved(t *testing.T, n *netops.Net, ns *netops.Namespace) []netops.Change {
	t.Helper()
	plan, err := n.Plan(context.Background(), moveSpec(), ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(context.Background(), plan, ns); err != nil {
		t.Fatal(err)
	}
	return throughJSON(t, plan.Changes)
}

// TestMove moves a link although its names are taken on both sides. It moves the
// link back after it was renamed in the container (host-device: "works with a
// device renamed in the container").
func TestMove(t *testing.T) {
	ctx := context.Background()
	movable(t)
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	inside(t, box, "ip", "link", "add", "dev7", "type", "bridge")
	before := netopstest.Snapshot(t) + box.Snapshot(t)
	changes := moved(t, n, ns)
	const want = `add move link dev7 from host to container as eth0 alias "cnibox:0123456789abcdef dev7"
  <- del move link dev7 from host to container as eth0 alias "cnibox:0123456789abcdef dev7" type macvlan permaddr 02:00:00:00:00:07 back "an admin's" mtu 1400 up
set link eth0 netns container mtu 1300 up
  <- set link eth0 netns container mtu 1400 down
`
	if d := cmp.Diff(want, lines(changes)); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if diffs, err := n.Verify(ctx, moveSpec(), ns); err != nil || len(diffs) != 0 {
		t.Errorf("Verify: %v, %v", diffs, err)
	}
	if l, err := n.Link(ctx, ns, "eth0"); err != nil || l.MAC != "02:00:00:00:00:07" || l.Alias != testLabel+" dev7" || !l.Up {
		t.Errorf("in the container: %+v, %v", l, err)
	}
	if _, err := n.Link(ctx, nil, "dev7"); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("in the host: %v", err)
	}
	inside(t, box, "ip", "link", "set", "eth0", "down")
	inside(t, box, "ip", "link", "set", "eth0", "name", "other", "mtu", "1400")
	for range 2 {
		if err := n.Undo(ctx, changes, ns); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
		t.Errorf("after Undo (-before +after):\n%s", d)
	}
}

// TestMoveNameOnly leaves the link's MTU and state to another inverse.
func TestMoveNameOnly(t *testing.T) {
	movable(t)
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	spec := moveSpec()
	spec.Objects[0].(*netops.Move).NameOnly = true
	plan, err := n.Plan(t.Context(), spec, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(t.Context(), plan, ns); err != nil {
		t.Fatal(err)
	}
	const want = `  <- del move link dev7 from host to container as eth0 alias "cnibox:0123456789abcdef dev7" type macvlan permaddr 02:00:00:00:00:07 back "an admin's" name only
`
	if have := lines(throughJSON(t, plan.Changes)); !strings.Contains(have, want) {
		t.Errorf("plan is\n%s\nwant\n%s", have, want)
	}
	inside(t, box, "ip", "link", "set", "eth0", "mtu", "1350", "name", "other")
	if err := n.Undo(t.Context(), plan.Changes[:1], ns); err != nil {
		t.Fatal(err)
	}
	if l, err := n.Link(t.Context(), nil, "dev7"); err != nil || l.MTU != 1350 || l.Alias != "an admin's" || l.Up {
		t.Errorf("on the host: %+v, %v", l, err)
	}
}

// TestMoveBackFromAnywhere reverts a move that was interrupted, or whose link
// another program changed.
func TestMoveBackFromAnywhere(t *testing.T) {
	for _, c := range []struct {
		name  string
		since func(t *testing.T, box *netopstest.NS)
		// gone makes Undo run without the container.
		gone bool
		// want is the final name of the link.
		want string
	}{
		{"nothing since", func(*testing.T, *netopstest.NS) {}, false, "dev7"},
		{"label taken off inside", func(t *testing.T, box *netopstest.NS) {
			inside(t, box, "ip", "link", "set", "eth0", "alias", "mine")
		}, false, "dev7"},
		{"label on another link inside", func(t *testing.T, box *netopstest.NS) {
			inside(t, box, "ip", "link", "set", "eth0", "alias", "mine")
			inside(t, box, "ip", "link", "add", "fake", "type", "bridge")
			inside(t, box, "ip", "link", "set", "fake", "alias", testLabel)
		}, false, "dev7"},
		{"another address and MTU", func(t *testing.T, box *netopstest.NS) {
			inside(t, box, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:99", "mtu", "1280")
		}, false, "dev7"},
		{"another address and MTU, back by the kernel", func(t *testing.T, box *netopstest.NS) {
			inside(t, box, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:99", "mtu", "1280")
			takeOut(t, box, "eth0", "dev5")
		}, true, "dev7"},
		{"name taken at home", func(t *testing.T, _ *netopstest.NS) {
			run(t, "ip", "link", "add", "dev7", "type", "bridge")
			t.Cleanup(func() { run(t, "ip", "link", "del", "dev7") })
		}, false, "dev[01]"},
		{"killed before it moved", func(t *testing.T, box *netopstest.NS) {
			takeOut(t, box, "eth0", "dev7")
			run(t, "ip", "link", "set", "dev7", "up")
		}, false, "dev7"},
		{"killed on its way back", func(t *testing.T, box *netopstest.NS) { takeOut(t, box, "eth0", "dev7") }, true, "dev7"},
		{"back by the kernel", func(t *testing.T, box *netopstest.NS) {
			takeOut(t, box, "eth0", "dev5")
			run(t, "ip", "link", "set", "dev5", "up")
		}, true, "dev7"},
		{"back by the kernel, name taken", func(t *testing.T, box *netopstest.NS) {
			takeOut(t, box, "eth0", "dev5")
			run(t, "ip", "link", "add", "dev7", "type", "bridge")
			t.Cleanup(func() { run(t, "ip", "link", "del", "dev7") })
		}, true, "dev5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			movable(t)
			n, box := newNet(t, nil), netopstest.New(t)
			ns := open(t, n, box)
			changes := moved(t, n, ns)
			c.since(t, box)
			if c.gone {
				ns = nil
			}
			for range 2 {
				if err := n.Undo(ctx, changes, ns); err != nil {
					t.Fatal(err)
				}
			}
			if l := dev7(t, n); !matches(c.want, l.Name) || l.Alias != "an admin's" || !l.Up || l.MTU != 1400 || l.MAC != "02:00:00:00:00:07" {
				t.Errorf("back: %+v, want it as %s", l, c.want)
			}
		})
	}
}

// TestMoveSeveral moves several links of one attachment, which have the same label. Each gets its own name and MTU again, with the record
// and without.
func TestMoveSeveral(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		t.Run(fmt.Sprintf("recorded %v", recorded), func(t *testing.T) {
			ctx := context.Background()
			movable(t)
			run(t, "ip", "link", "add", "link", "par0", "dev8", "mtu", "1300", "type", "macvlan")
			n, box := newNet(t, nil), netopstest.New(t)
			ns := open(t, n, box)
			before := netopstest.Snapshot(t)
			var spec, orphans netops.Spec
			for _, name := range []string{"dev7", "dev8"} {
				spec.Add(&netops.Move{From: netops.Host, Name: name, To: netops.Container, As: name, Alias: testLabel + " " + name})
				orphans.Add(&netops.Move{From: netops.Host, Name: name, To: netops.Container, As: name, Alias: testLabel})
			}
			plan, err := n.Plan(ctx, spec, ns)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Apply(ctx, plan, ns); err != nil {
				t.Fatal(err)
			}
			// The links got each other's names and addresses.
			inside(t, box, "ip", "link", "set", "dev7", "name", "x")
			inside(t, box, "ip", "link", "set", "dev8", "name", "dev7", "address", "02:00:00:00:00:07")
			inside(t, box, "ip", "link", "set", "x", "name", "dev8")
			if recorded {
				err = n.Undo(ctx, throughJSON(t, plan.Changes), ns)
			} else {
				err = n.Remove(ctx, orphans, ns)
			}
			if err != nil {
				t.Fatal(err)
			}
			if recorded {
				if d := cmp.Diff(before, netopstest.Snapshot(t)); d != "" {
					t.Errorf("after Undo (-before +after):\n%s", d)
				}
			}
			for name, mtu := range map[string]int{"dev7": 1400, "dev8": 1300} {
				if l, err := n.Link(ctx, nil, name); err != nil || l.MTU != mtu {
					t.Errorf("%s: %+v, %v, want it with mtu %d", name, l, err, mtu)
				}
			}
		})
	}
}

// dev7 returns the host's link that was created as dev7.
func dev7(t *testing.T, n *netops.Net) netops.LinkInfo {
	t.Helper()
	all, err := n.Links(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(l netops.LinkInfo) bool { return l.Kind == "macvlan" })
	if i < 0 {
		t.Fatalf("not in the host: %+v", all)
	}
	return all[i]
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// takeOut moves a link from the container to the host, as the kernel does when
// it destroys a namespace.
func takeOut(t *testing.T, box *netopstest.NS, from, as string) {
	t.Helper()
	rename(t, box, from, as)
	moveOut(t, box, as)
}

func rename(t *testing.T, box *netopstest.NS, from, as string) {
	t.Helper()
	inside(t, box, "ip", "link", "set", from, "down")
	inside(t, box, "ip", "link", "set", from, "name", as)
}

func moveOut(t *testing.T, box *netopstest.NS, name string) {
	t.Helper()
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	inside(t, box, "ip", "link", "set", name, "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), host.Fd()))
}

// TestMoveAwaitsDevice reverts a move while the kernel is still destroying the
// container's namespace. The device returns later.
func TestMoveAwaitsDevice(t *testing.T) {
	ctx := context.Background()
	movable(t)
	n, box := newNet(t, nil), netopstest.New(t)
	changes := moved(t, n, open(t, n, box))
	m := *changes[0].Undo.Object.(*netops.Move)
	m.Kind = "" // the kind of a physical device, which the machine may lack
	late := []netops.Change{{Do: changes[0].Do, Undo: &netops.Step{Verb: netops.VerbDel, Object: &m}}}
	rename(t, box, "eth0", "dev5")
	done := make(chan error, 1)
	go func() { done <- n.Undo(ctx, late, nil) }()
	await.Until(t, func() bool {
		if len(done) > 0 {
			t.Fatalf("Undo did not wait: %v", <-done)
		}
		return listeners(t) > 0
	}, func() string { return "no process listens to links" })
	moveOut(t, box, "dev5") // at once, because Undo waits for a few seconds only
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if l, err := n.Link(ctx, nil, "dev7"); err != nil || l.Alias != "an admin's" || !l.Up {
		t.Errorf("dev7: %+v, %v", l, err)
	}
}

// listeners returns the number of rtnetlink sockets that receive link events.
func listeners(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // sk Eth Pid Groups …
		if len(f) > 3 && f[1] == "0" && f[3] == "00000001" {
			count++
		}
	}
	return count
}

// TestMoveVirtualGone reverts the move of a link that was deleted with its
// namespace.
func TestMoveVirtualGone(t *testing.T) {
	ctx := context.Background()
	movable(t)
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	changes := moved(t, n, ns)
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	box.Remove(t)
	if err := n.Undo(ctx, changes, nil); err != nil {
		t.Error(err)
	}
}

// TestMoveRefused checks that Plan refuses links that cannot be moved.
func TestMoveRefused(t *testing.T) {
	ctx := context.Background()
	movable(t)
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	inside(t, box, "ip", "link", "add", "eth1", "type", "bridge")
	run(t, "ip", "link", "set", "eth0p", "master", "par0")
	run(t, "ip", "link", "set", "eth0", "alias", "cnibox:fedcba9876543210 another")
	for _, c := range []struct {
		name string
		as   string
		err  error
		want string
	}{
		{"none", "eth0", netops.ErrNotExist, `link "none": does not exist`},
		{"lo", "eth0", netops.ErrInvalid, `interface "lo" is the loopback device`},
		{"eth0p", "eth0", netops.ErrConflict, `interface "eth0p" belongs to "par0"`},
		{"eth0", "eth0", netops.ErrConflict, `interface "eth0" is an attachment's, with the alias "cnibox:fedcba9876543210 another"`},
		{"dev7", "eth1", netops.ErrExists, `interface "eth1" exists already in the container's namespace`},
		{"", "eth0", netops.ErrInvalid, "no name"},
		{"dev7", "eth/0", netops.ErrInvalid, `interface name "eth/0"`},
	} {
		spec := netops.Spec{Objects: []netops.Object{&netops.Move{From: netops.Host, Name: c.name, To: netops.Container, As: c.as, Alias: testLabel}}}
		if _, err := n.Plan(ctx, spec, ns); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q as %q: %v, want %v: %s", c.name, c.as, err, c.err, c.want)
		}
	}
}

// TestMoveNameTakenMeanwhile creates eth0 in the container after the plan. The
// kernel moves the link before it rejects the name, and Apply moves the link
// back.
func TestMoveNameTakenMeanwhile(t *testing.T) {
	ctx := context.Background()
	movable(t)
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	plan, err := n.Plan(ctx, moveSpec(), ns)
	if err != nil {
		t.Fatal(err)
	}
	inside(t, box, "ip", "link", "add", "eth0", "type", "bridge")
	before := netopstest.Snapshot(t) + box.Snapshot(t)
	err = n.Apply(ctx, plan, ns)
	if !errors.Is(err, netops.ErrExists) || err.Error() != `interface "eth0" exists already in the container's namespace` {
		t.Errorf("Apply: %v", err)
	}
	if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
		t.Errorf("after Apply (-before +after):\n%s", d)
	}
}

// TestMoveFails makes each step fail in turn and checks that the state is
// unchanged.
func TestMoveFails(t *testing.T) {
	ctx := context.Background()
	movable(t)
	box := netopstest.New(t)
	before := netopstest.Snapshot(t) + box.Snapshot(t)
	for i := range moveSpec().Objects {
		n := newNet(t, &netopstest.FailNth{N: i + 1})
		if err := n.Ensure(ctx, moveSpec(), open(t, n, box)); !errors.Is(err, netopstest.ErrProbe) {
			t.Errorf("step %d: %v", i+1, err)
		}
		if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
			t.Errorf("step %d (-before +after):\n%s", i+1, d)
		}
	}
}

// TestMoveRemove moves a link back without a record. It finds the link by its
// label and restores the name in the alias.
func TestMoveRemove(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct{ words, want string }{{"", "dev[01]"}, {" net/eth0/id", "dev[01]"}, {" dev7 net/eth0/id", "dev7"}} {
		t.Run(c.words, func(t *testing.T) {
			movable(t)
			n, box := newNet(t, nil), netopstest.New(t)
			ns := open(t, n, box)
			moved(t, n, ns)
			box.Do(t, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetAlias(l, testLabel+c.words)
			})
			stray := netops.Spec{Objects: []netops.Object{&netops.Move{From: netops.Host, To: netops.Container, As: "eth0", Alias: testLabel}}}
			for range 2 {
				if err := n.Remove(ctx, stray, ns); err != nil {
					t.Fatal(err)
				}
			}
			if l := dev7(t, n); !matches(c.want, l.Name) || l.Alias != "" || l.Up {
				t.Errorf("back: %+v", l)
			}
		})
	}
}
