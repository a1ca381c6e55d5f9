package azurevnet_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestBridgeDeleted: deleting azure0 deletes the node's addresses too. ADD then
// creates no pod, because it could not reach anything, and says how to restore
// the addresses. After that ADD succeeds.
func TestBridgeDeleted(t *testing.T) {
	for name, conf := range map[string]string{"master found": bridge, "master named": bridgeDual} {
		t.Run(name, func(t *testing.T) {
			newFabric(t)
			e := rolestest.NewEnv(t, all.Table())
			a := attach(t, e, conf, "a")
			l := link(t, "eth0")
			br, err := netlink.LinkByIndex(l.Attrs().MasterIndex)
			must(t, err)
			must(t, netlink.LinkDel(br))
			call := a.call
			call.ID, call.IfName = "b", "net1"
			out := e.Fail(call, 11).Stdout
			for _, text := range []string{`eth0`, `had [10.240.0.4/16`, `networkctl reconfigure eth0`, `ip address add 10.240.0.4/16 dev eth0`} {
				if !strings.Contains(out, text) {
					t.Errorf("%s\nwithout %s", out, text)
				}
			}
			if _, err := netlink.LinkByName(br.Attrs().Name); err == nil {
				t.Error("ADD created the bridge")
			}
			must(t, nodeEth0())
			e.OK(call)
			call.Verb = "DEL"
			e.OK(call)
			a.detach(e)
			collect(t, e, conf)
		})
	}
}

// TestUplinkGone: the addresses cannot be moved back to an interface that does
// not exist.
func TestUplinkGone(t *testing.T) {
	newFabric(t)
	e := rolestest.NewEnv(t, all.Table())
	attach(t, e, bridge, "a").detach(e)
	must(t, netlink.LinkDel(link(t, "eth0")))
	t.Cleanup(func() {
		must(t, netlink.LinkDel(link(t, "azure0")))
		must(t, netopstest.MakeMaster("eth0")) // the fabric's cleanup deletes it
	})
	_, err := verb(t.Context(), host(t, e), "restore", nil)
	if err == nil || !strings.Contains(err.Error(), `which does not exist any more`) || !strings.Contains(err.Error(), "ip link del azure0") {
		t.Errorf("restore: %v", err)
	}
}
