package netops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NamespaceDir is where `ip netns` keeps namespaces by name.
const NamespaceDir = "/run/netns"

// MakeNamespace makes a network namespace that stays until RemoveNamespace, as
// `ip netns add` does. A name that is taken is fs.ErrExist.
func (n *Net) MakeNamespace(name string) (*Namespace, error) {
	path, err := makeNamespace(name, os.O_EXCL)
	if err != nil {
		return nil, err
	}
	return n.OpenNamespace(path)
}

// makeNamespace makes a namespace and names it, in the place of a plain file unless
// flags have O_EXCL.
func makeNamespace(name string, flags int) (path string, err error) {
	path = filepath.Join(NamespaceDir, name)
	if err := shareNamespaceDir(); err != nil {
		return "", fmt.Errorf("make namespace %q: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|flags, 0o444)
	if err != nil {
		return "", fmt.Errorf("make namespace: %w", err)
	}
	if err := errors.Join(f.Close(), bindNewNamespace(path)); err != nil {
		return "", errors.Join(fmt.Errorf("make namespace %q: %w", name, err), os.Remove(path))
	}
	return path, nil
}

// RemoveNamespace takes the name away, which ends the namespace unless a process
// is in it. One that is not there is success.
func (n *Net) RemoveNamespace(name string) error {
	path := filepath.Join(NamespaceDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %q: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace: %w", err)
	}
	return nil
}

// shareNamespaceDir has mounts below the directory be seen in other mount
// namespaces, and their end too: else a namespace lives on in those.
func shareNamespaceDir() error {
	if err := os.MkdirAll(NamespaceDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", NamespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// It is no mount of its own yet.
	if err := unix.Mount(NamespaceDir, NamespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", NamespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
}

// bindNewNamespace mounts a new namespace at path, by a thread that goes there
// and back.
func bindNewNamespace(path string) error {
	here, err := openNamespace(threadNamespace)
	if err != nil {
		return err
	}
	defer here.Close()
	return here.visit(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount(threadNamespace, path, "", unix.MS_BIND, "")
	})
}

// Run runs f on a thread that is in the namespace: sockets that f opens and
// processes that it starts are there. f must not start goroutines that depend on it.
func (ns *Namespace) Run(f func() error) error { return ns.visit(f) }
