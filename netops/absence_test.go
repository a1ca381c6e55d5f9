package netops_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/bus"
)

// TestNamespaceDoubt checks that an error that says nothing about a namespace is not
// its absence.
func TestNamespaceDoubt(t *testing.T) {
	n, box := newNet(t, nil), netopstest.New(t)
	loop := filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if _, err := n.OpenNamespace(loop); errors.Is(err, netops.ErrNoNetns) || !errors.Is(err, unix.ELOOP) {
		t.Errorf("symbolic link to itself: %v", err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := n.OpenNamespace(box.Path())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if errors.Is(err, netops.ErrNoNetns) || !errors.Is(err, netops.ErrBusy) {
		t.Errorf("no free descriptor: %v", err)
	}
}

// TestUndoNamedDoubt checks that Undo returns an error, and changes nothing, if it
// cannot find out whether a named namespace exists.
func TestUndoNamedDoubt(t *testing.T) {
	n := newNet(t, nil)
	const name = "doubt"
	path := filepath.Join(netops.NamespaceDir, name)
	for _, made := range []netops.Object{
		&netops.Netns{Name: name, Alias: "cnibox:0123456789abcdef"},
		&netops.Link{In: netops.Named(name), Name: "dummy0", Kind: "dummy", Alias: "cnibox:0123456789abcdef"},
	} {
		if err := os.MkdirAll(netops.NamespaceDir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, path); err != nil {
			t.Fatal(err)
		}
		undo := []netops.Change{{Do: netops.Step{Verb: netops.VerbAdd, Object: made}, Undo: &netops.Step{Verb: netops.VerbDel, Object: made}}}
		if err := n.Undo(t.Context(), undo, nil); !errors.Is(err, unix.ELOOP) {
			t.Errorf("Undo %s: %v", made, err)
		}
		if err := os.Remove(path); err != nil {
			t.Errorf("%s: %v", made, err)
		}
	}
}

// TestBusDoubt checks that a system bus that cannot be reached is not an absent one:
// the zone of a firewalld that runs may have the source.
func TestBusDoubt(t *testing.T) {
	bus.Cover(t, "/run/dbus")
	n := newNet(t, nil)
	const socket = "/run/dbus/system_bus_socket"
	if err := n.Firewalld(t.Context()); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("no bus: %v", err)
	}
	if err := os.Symlink(socket, socket); err != nil {
		t.Fatal(err)
	}
	if err := n.Firewalld(t.Context()); errors.Is(err, netops.ErrNotExist) || !errors.Is(err, unix.ELOOP) {
		t.Errorf("symbolic link to itself: %v", err)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // only its name is used
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	if err := n.Firewalld(t.Context()); errors.Is(err, netops.ErrNotExist) || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a bus that does not answer: %v", err)
	}
}
