package multi_test

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
)

// TestUnwritable: DEL and GC detach everything while the record of the networks cannot be written.
// They do not call the plugins again when it can be.
func TestUnwritable(t *testing.T) {
	for name, off := range map[string]func(w *world) error{
		"read-only": func(w *world) error { return unix.Mount("", w.StateDir(), "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
		"full": func(w *world) error {
			if err := os.WriteFile(w.StateDir()+"/much", bytes.Repeat([]byte("x"), 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("not full: %v", err)
			}
			return nil
		},
	} {
		for _, verb := range []string{"DEL", "GC"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				w := newWorld(t)
				if err := os.MkdirAll(w.StateDir(), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mount("tmpfs", w.StateDir(), "tmpfs", 0, "size=1m,mode=700"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(w.StateDir(), unix.MNT_DETACH) })
				w.wish("b,s@extra")
				w.OK(w.call("ADD"))
				if err := off(w); err != nil {
					t.Fatal(err)
				}
				status := w.call("STATUS")
				status.ID, status.Netns, status.IfName = "", "", ""
				w.Fail(status, 50)
				end := w.gc([]roles.AttachmentID{})
				if verb == "DEL" {
					end = w.call("DEL")
				}
				w.OK(end)
				if inside := w.ns.Snapshot(t); strings.Contains(inside, "eth0") || strings.Contains(inside, "net1") {
					t.Errorf("left\n%s", inside)
				}
				w.OK(w.call("DEL"))
				w.OK(w.gc([]roles.AttachmentID{}))
				if name == "read-only" {
					w.Fail(w.call("ADD"), 5)
				}
				_ = os.Remove(w.StateDir() + "/much")
				if err := unix.Mount("", w.StateDir(), "", unix.MS_REMOUNT, "size=1m"); err != nil {
					t.Fatal(err)
				}
				w.OK(w.call("DEL"))
				if state := w.state(); strings.Contains(state, "container1") {
					t.Errorf("left when it can be written again\n%s", state)
				}
				calls, _ := w.calls()
				if n := len(slices.DeleteFunc(calls, func(c string) bool { return c != "DEL container1 extra" })); n != 1 {
					t.Errorf("%d DEL of a network, want 1", n)
				}
				w.OK(w.call("ADD"))
				w.OK(w.call("DEL"))
				w.dropBridges()
			})
		}
	}
}
