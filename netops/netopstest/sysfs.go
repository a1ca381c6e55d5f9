package netopstest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// HardwareTree replaces /sys by an empty tree until the test ends. Tests use it
// for hardware that no test machine has. As in sysfs, the tree consists of real
// directories and links. Other processes do not see it, because the test binary
// has its own mount namespace (see Main).
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

// Hardware is one device in a HardwareTree.
type Hardware struct {
	// Bus and ID name the device: "pci" and "0000:03:00.0".
	Bus, ID string
	// Path is its directory, relative to /sys/devices.
	Path string
	// Driver is the driver that is bound to the device, or "".
	Driver string
	// Below is the child that has the network interfaces, such as "virtio0".
	// For "" it is the device itself.
	Below string
	// Links are the names of its network interfaces.
	Links []string
	// Of is the directory of the physical function that the device is the virtual
	// function Number of, relative to /sys/devices.
	Of     string
	Number int
}

// Add creates the directories and links of a device in a HardwareTree.
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
	if hw.Of != "" {
		physical := filepath.Join("/sys/devices", hw.Of)
		makeLink(t, physical, filepath.Join(dir, "physfn"))
		makeLink(t, dir, filepath.Join(physical, fmt.Sprintf("virtfn%d", hw.Number)))
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

// makeLink creates a relative symbolic link, as sysfs has them.
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
