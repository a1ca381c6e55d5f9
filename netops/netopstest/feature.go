package netopstest

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// vmEnv is set in the VM test layer, where a missing kernel feature is a
// failure.
const vmEnv = "CNIBOX_TEST_VM"

// NeedVLANFiltering skips a test if the kernel's bridges cannot filter VLANs.
// The VM layer runs the same tests on a kernel that can.
func NeedVLANFiltering(t testing.TB) {
	t.Helper()
	on := true
	err := New(t).run(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, VlanFiltering: &on})
	})
	if err == nil {
		return
	}
	if os.Getenv(vmEnv) == "" && errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no bridge VLAN filtering; make test-vm runs this")
	}
	t.Fatalf("make a bridge that filters VLANs: %v", err)
}

// NeedKind skips a test if the kernel cannot create links of a kind. The VM
// layer runs the same tests on a kernel that can.
func NeedKind(t testing.TB, kind string) {
	t.Helper()
	err := New(t).run(func() error {
		parent := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "parent"}}
		if err := netlink.LinkAdd(parent); err != nil {
			return err
		}
		attrs := netlink.LinkAttrs{Name: "probe", ParentIndex: parent.Index}
		switch kind {
		case "ipvlan":
			return netlink.LinkAdd(&netlink.IPVlan{LinkAttrs: attrs})
		case "vlan":
			return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 1, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
		case "tun":
			return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Mode: netlink.TUNTAP_MODE_TAP})
		case "vrf":
			return netlink.LinkAdd(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Table: 1})
		}
		return netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind})
	})
	if err == nil {
		return
	}
	if os.Getenv(vmEnv) == "" && errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no links of kind %q; make test-vm runs this", kind)
	}
	t.Fatalf("make a link of kind %q: %v", kind, err)
}
