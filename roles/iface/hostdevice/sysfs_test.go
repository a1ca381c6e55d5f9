package hostdevice_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// hardware is the directory of the device that a link belongs to, without the
// virtio directory.
func hardware(t testing.TB, link string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(filepath.Join("/sys/class/net", link, "device"))
	must(t, err)
	if strings.HasPrefix(filepath.Base(path), "virtio") {
		path = filepath.Dir(path)
	}
	return path
}

// pciAddress is the last element of the directory of a PCI device.
func pciAddress(t testing.TB, path string) string {
	t.Helper()
	id := filepath.Base(path)
	if strings.Count(id, ":") != 2 {
		t.Fatalf("%q is not on PCI", path)
	}
	return id
}
