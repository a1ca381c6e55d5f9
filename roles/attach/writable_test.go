package attach_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestUnwritableStatus: STATUS fails if ADD cannot write the state file, because its file system is
// read-only or full.
func TestUnwritableStatus(t *testing.T) {
	p := rolestest.NewPod(t, table(), "ptp")
	if err := errors.Join(os.MkdirAll(p.RunDir(), 0o700), unix.Mount("tmpfs", p.RunDir(), "tmpfs", 0, "size=1m,mode=700")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.RunDir(), unix.MNT_DETACH) })
	status := p.Call("STATUS", "")
	status.ID, status.Netns, status.IfName = "", "", ""
	p.OK(status)
	much := filepath.Join(p.RunDir(), "much")
	if err := os.WriteFile(much, bytes.Repeat([]byte("x"), 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("not full: %v", err)
	}
	p.Refused(status, 50, "is full")
	if err := errors.Join(os.Remove(much), unix.Mount("", p.RunDir(), "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	p.Refused(status, 50, "read-only")
	if err := unix.Mount("", p.RunDir(), "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	p.OK(status)
}
