package netopstest

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// vmEnv is set where a missing kernel feature is a failure: the VM layer.
const vmEnv = "CNIBOX_TEST_VM"

// NeedVLANFiltering skips a test where the kernel's bridges cannot filter
// VLANs. The VM layer runs the same tests on a kernel that can.
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
