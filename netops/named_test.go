package netops

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

// TestNamedNamespace creates a named namespace, enters and leaves it, and
// deletes it with its name.
func TestNamedNamespace(t *testing.T) {
	n := New(Options{})
	defer n.Close()
	const name = "netops-named"
	ns, err := n.MakeNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.RemoveNamespace(name) }()
	defer ns.Close()
	if host, err := n.IsHost(ns); err != nil || host {
		t.Fatalf("it is this process' own: %v", err)
	}
	inside := func() (dev, inode uint64) {
		here, err := openNamespace(threadNamespace)
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		return here.ID()
	}
	_, before := inside()
	if err := ns.Run(func() error {
		_, want := ns.ID()
		if _, is := inside(); is != want {
			t.Errorf("in namespace %d, not %d", is, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, after := inside(); after != before {
		t.Errorf("afterwards in namespace %d, not %d", after, before)
	}
	if _, err := n.MakeNamespace(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	for range 2 {
		if err := n.RemoveNamespace(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(ns.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its name is left: %v", err)
	}
}
