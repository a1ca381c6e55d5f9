package netops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NamespaceDir is the directory in which `ip netns` mounts named namespaces.
const NamespaceDir = "/run/netns"

// MakeNamespace creates a network namespace that exists until RemoveNamespace,
// as `ip netns add` does. The error wraps fs.ErrExist if the name is taken.
func (n *Net) MakeNamespace(name string) (*Namespace, error) {
	path, err := makeNamespace(name, os.O_EXCL)
	if err != nil {
		return nil, err
	}
	return n.OpenNamespace(path)
}

// makeNamespace creates a named namespace. It replaces a plain file with that
// name unless flags contain O_EXCL.
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

// RemoveNamespace deletes the name. The kernel deletes the namespace when no
// process uses it. An absent name is not an error.
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

// shareNamespaceDir makes mounts and unmounts below the directory propagate to
// other mount namespaces. Without it a deleted namespace continues to exist in
// them.
func shareNamespaceDir() error {
	if err := os.MkdirAll(NamespaceDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", NamespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// The directory is not a mount point yet.
	if err := unix.Mount(NamespaceDir, NamespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", NamespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
}

// bindNewNamespace mounts a new namespace at path. One thread enters the new
// namespace, mounts it and returns.
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

// Run runs f on a thread in the namespace. The sockets that f opens and the
// processes that it starts are in the namespace. Goroutines that f starts are
// not.
func (ns *Namespace) Run(f func() error) error { return ns.visit(f) }
