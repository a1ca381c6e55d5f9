package bridge_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// sharedBridge is a node with two networks on one bridge with one gateway.
type sharedBridge struct {
	*rolestest.Env
	t  *testing.T
	ns *netopstest.NS
}

func newSharedBridge(t *testing.T) *sharedBridge {
	t.Helper()
	return &sharedBridge{Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t)}
}

// call is a call for the container, which has an interface on each network.
func (n *sharedBridge) call(verb, network string) {
	n.t.Helper()
	conf := rolestest.WithKeys(n.t, gateway, map[string]any{"name": network, "cniVersion": "1.1.0", "ipam": map[string]any{
		"type": "host-local", "ranges": [][]map[string]string{{{
			"subnet": "10.1.0.0/24", "rangeStart": map[string]string{"a": "10.1.0.10", "b": "10.1.0.20"}[network],
		}}},
	}})
	if verb == "GC" {
		conf = rolestest.WithKeys(n.t, conf, map[string]any{"cni.dev/valid-attachments": []string{}})
	}
	n.OK(rolestest.Call{Type: "bridge", Verb: verb, ID: "c1", Netns: n.ns.Path(), IfName: "eth-" + network, Conf: conf})
}

// TestTwoNetworksOnOneBridge: an object that one network created and the other
// uses stays until GC has removed both networks, in either order.
func TestTwoNetworksOnOneBridge(t *testing.T) {
	for _, order := range []string{"ab", "ba"} {
		t.Run(order, func(t *testing.T) {
			n := newSharedBridge(t)
			pristine := n.State([]string{"sysctl net/"}, n.ns)
			n.call("ADD", "a")
			n.call("ADD", "b")
			first, last := order[:1], order[1:]
			must(t, flushRuleset())
			n.call("DEL", first)
			n.call("ADD", first) // records both networks again
			n.call("DEL", first)
			n.call("GC", first)
			if s := netopstest.Snapshot(t); !strings.Contains(s, "10.1.0.1/24") || !strings.Contains(s, "set masq4 element") {
				t.Errorf("after GC of %q the bridge has lost its gateway or its masquerading:\n%s", first, s)
			}
			n.call("DEL", last)
			n.call("GC", last)
			if s := n.State([]string{"sysctl net/"}, n.ns); s != pristine {
				t.Errorf("after GC of both:\n%s\nwas:\n%s", s, pristine)
			}
		})
	}
}

// TestOtherPortOnBridge: a bridge with another program's port stays. The GC
// after the port is deleted removes it.
func TestOtherPortOnBridge(t *testing.T) {
	n := newSharedBridge(t)
	pristine := n.State([]string{"sysctl net/"}, n.ns)
	n.call("ADD", "a")
	attrs := netlink.LinkAttrs{Name: "other", MasterIndex: link(t, "br0").Attrs().Index}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable"}))
	n.call("GC", "a")
	if a, err := netlink.AddrList(link(t, "br0"), netlink.FAMILY_V4); err != nil || len(a) != 1 {
		t.Errorf("the bridge has the addresses %v, %v", a, err)
	}
	must(t, netlink.LinkDel(link(t, "other")))
	n.call("GC", "a")
	var none netlink.LinkNotFoundError
	if _, err := netlink.LinkByName("br0"); !errors.As(err, &none) {
		t.Errorf("the bridge still exists: %v", err)
	}
	if s := n.State([]string{"sysctl net/"}, n.ns); s != pristine {
		t.Errorf("after the last GC:\n%s\nwas:\n%s", s, pristine)
	}
}
