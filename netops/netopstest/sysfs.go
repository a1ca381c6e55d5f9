package netopstest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// HardwareTree puts an empty tree in the place of /sys until the test ends, for
// hardware that no test machine has. It is made of real directories and links,
// as sysfs is; the test binary has a mount namespace of its own (see Main).
func HardwareTree(t testing.TB) {
	t.Helper()
	if err := unix.Mount("tmpfs", "/sys", "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatalf("cover /sys: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
			t.Errorf("uncover /sys: %v", err)
		}
	})
}

// Hardware is one device of a HardwareTree.
type Hardware struct {
	// Bus and ID name the device: "pci" and "0000:03:00.0".
	Bus, ID string
	// Path is its directory, relative to /sys/devices.
	Path string
	// Driver is what is bound to it, "" for none.
	Driver string
	// Below is a child that has the links, "virtio0"; "" is the device itself.
	Below string
	// Links are the names of its network interfaces.
	Links []string
}

// Add makes the directories and links of a device in a HardwareTree.
func (hw Hardware) Add(t testing.TB) {
	t.Helper()
	dir := filepath.Join("/sys/devices", hw.Path)
	makeDir(t, dir)
	makeLink(t, dir, filepath.Join("/sys/bus", hw.Bus, "devices", hw.ID))
	if hw.Driver != "" {
		driver := filepath.Join("/sys/bus", hw.Bus, "drivers", hw.Driver)
		makeDir(t, driver)
		makeLink(t, driver, filepath.Join(dir, "driver"))
	}
	for _, l := range hw.Links {
		parent := filepath.Join(dir, hw.Below)
		makeDir(t, filepath.Join(parent, "net", l))
		makeLink(t, parent, filepath.Join(parent, "net", l, "device"))
		makeLink(t, filepath.Join(parent, "net", l), filepath.Join("/sys/class/net", l))
	}
}

func makeDir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// makeLink makes a relative symbolic link, as sysfs has them.
func makeLink(t testing.TB, to, at string) {
	t.Helper()
	makeDir(t, filepath.Dir(at))
	rel, err := filepath.Rel(filepath.Dir(at), to)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(rel, at); err != nil {
		t.Fatal(err)
	}
}
