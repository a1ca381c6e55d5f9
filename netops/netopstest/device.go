package netopstest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// NeedDevices returns the names of two free hardware devices, or skips the test.
// Unlike a virtual device, a hardware device survives the deletion of its
// network namespace. See InitialMain.
func NeedDevices(t testing.TB) [2]string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, l := range links {
		if _, err := os.Stat(filepath.Join("/sys/class/net", l.Attrs().Name, "device")); err == nil {
			found = append(found, l.Attrs().Name)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) >= 2:
		return [2]string(found[:2])
	case os.Getenv(vmEnv) == "":
		t.Skip("this needs real devices; make test-vm runs it")
	}
	t.Fatalf("devices on the host: %q, want two", found)
	return [2]string{}
}
