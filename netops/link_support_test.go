package netops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestHasKind checks that HasKind distinguishes known from unknown kinds and makes no link.
func TestHasKind(t *testing.T) {
	n := newNet(t, nil)
	before := netopstest.Snapshot(t)
	for _, kind := range []string{"veth", "bridge", "macvlan", "vxlan"} { // every test kernel has these kinds
		if err := n.HasKind(t.Context(), kind); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := n.HasKind(t.Context(), "sundial"); !errors.Is(err, netops.ErrNotSupported) {
		t.Errorf("a kind that no kernel has: %v", err)
	}
	if now := netopstest.Snapshot(t); now != before {
		t.Errorf("something was made:\n%s", now)
	}
	for _, kind := range []string{"dummy", "ipvlan", "vlan", "vrf", "ifb"} {
		t.Run(kind, func(t *testing.T) {
			netopstest.NeedKind(t, kind)
			if err := n.HasKind(t.Context(), kind); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherMAC: the suite of a new role says which of its changes a link refuses, and what to do.
func TestOtherMAC(t *testing.T) {
	ns := netopstest.New(t)
	ns.Do(t, func() error {
		link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "t0"}, Mode: netlink.TUNTAP_MODE_TUN}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		err := netopstest.OtherMAC(link)
		if err == nil || !strings.Contains(err.Error(), `change the MAC of "t0": operation not supported: `) || !strings.Contains(err.Error(), "remove netopstest.OtherMAC") {
			t.Errorf("have %v", err)
		}
		return nil
	})
}
