package bond

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestPlan reads links of the kernel and plans a bond of them, which also a kernel without bonds can do. Each change has the inverse that DEL runs.
func TestPlan(t *testing.T) {
	pair := func() error {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port0", MTU: 9000, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, PeerName: "port1", PeerMTU: 9000, PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}
	box := netopstest.New(t)
	box.Do(t, pair)
	if err := pair(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l, err := netlink.LinkByName("port0"); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	n := netops.New(netops.Options{})
	defer n.Close() //nolint:errcheck // a test's
	plan := func(where string, box *netopstest.NS, first, ifName string) (string, error) {
		ns, err := n.OpenNamespace(box.Path())
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		r, err := rolestest.Read[*role](Role(), []byte(fmt.Sprintf(`{"mode":"balance-rr","miimon":"100","links":[{"name":%q},{"name":"port1"}],"linksInContainer":%s}`, first, where)))
		if err != nil {
			t.Fatal(err)
		}
		in := &attach.Input{Key: store.Key{Network: "n", ContainerID: "c", IfName: ifName}, Label: "cnibox:0123456789abcdef"}
		if err := r.Observe(t.Context(), &roles.Host{Net: n}, in, ns); err != nil {
			return "", err
		}
		w, err := r.Build(in)
		if err != nil {
			return "", err
		}
		p, err := n.Plan(t.Context(), w.Spec, ns)
		var lines []string
		for _, c := range p.Changes {
			lines = append(lines, fmt.Sprint(c.Do.Verb, " ", c.Do.Object))
			if c.Undo != nil {
				lines = append(lines, fmt.Sprint("  <- ", c.Undo.Verb, " ", c.Undo.Object))
			}
		}
		return strings.Join(lines, "\n"), err
	}
	empty := netopstest.New(t)
	for _, c := range []struct {
		where string
		box   *netopstest.NS
		want  string
	}{
		{"true", box, `set link port0 netns container down
  <- set link port0 netns container up
set link port1 netns container address 92:ef:35:a5:43:28
  <- set link port1 netns container address 02:00:00:00:00:01
add link bond0 netns container type bond mode balance-rr miimon 100 mtu 1500 alias "cnibox:0123456789abcdef"
  <- del link bond0 netns container type bond alias "cnibox:0123456789abcdef"
set link port0 netns container master bond0
  <- set link port0 netns container nomaster
set link port1 netns container master bond0
  <- set link port1 netns container nomaster
set link bond0 netns container up`},
		{"false", empty, `add move link port0 from host to container as port0 alias "LABEL port0 n/bond0/c"
  <- del move link port0 from host to container as port0 alias "LABEL port0 n/bond0/c" type veth permaddr 02:00:00:00:00:01 mtu 9000 up
add move link port1 from host to container as port1 alias "LABEL port1 n/bond0/c"
  <- del move link port1 from host to container as port1 alias "LABEL port1 n/bond0/c" type veth permaddr 02:00:00:00:00:01 mtu 9000
set link port1 netns container address 92:ef:35:a5:43:28
  <- set link port1 netns container address 02:00:00:00:00:01
add link bond0 netns container type bond mode balance-rr miimon 100 mtu 1500 alias "cnibox:0123456789abcdef"
  <- del link bond0 netns container type bond alias "cnibox:0123456789abcdef"
set link port0 netns container master bond0
  <- set link port0 netns container nomaster
set link port1 netns container master bond0
  <- set link port1 netns container nomaster
set link bond0 netns container up`},
	} {
		want := strings.ReplaceAll(c.want, "LABEL", attachment.Label(store.Key{Network: "n", ContainerID: "c", IfName: "bond0"}))
		if have, err := plan(c.where, c.box, "port0", "bond0"); err != nil || have != want {
			t.Errorf("linksInContainer %s: %v (-want +have):\n%s", c.where, err, cmp.Diff(want, have))
		}
	}
	for _, c := range []struct {
		where         string
		box           *netopstest.NS
		first, ifName string
		is            error
	}{
		{"true", box, "port0", "port0", roles.ErrConf},
		{"false", empty, "port0", "port1", roles.ErrConf},
		{"true", box, "port9", "bond0", netops.ErrNotExist},
		{"false", box, "port0", "bond0", netops.ErrExists},
	} {
		if have, err := plan(c.where, c.box, c.first, c.ifName); !errors.Is(err, c.is) {
			t.Errorf("%+v: %v, %s", c, err, have)
		}
	}
}
