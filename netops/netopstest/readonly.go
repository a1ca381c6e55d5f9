package netopstest

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// ReadOnlySysctls makes /proc/sys read-only until the test ends, as container runtimes mount it.
func ReadOnlySysctls(t testing.TB) {
	t.Helper()
	const dir = "/proc/sys"
	err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
	if err == nil {
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		err = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Fatal(fmt.Errorf("make %s read-only: %w", dir, err))
	}
}
