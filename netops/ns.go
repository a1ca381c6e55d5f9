package netops

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// threadNamespace is the network namespace of the thread that opens it.
const threadNamespace = "/proc/thread-self/ns/net"

// Namespace is an open network namespace. It stays while it is open, even if
// its path goes. The zero value is the namespace of the process.
type Namespace struct {
	path string
	// fd is the open namespace, 0 for that of the process.
	fd         int
	dev, inode uint64
	conn       *rtnl.Conn
	// ct lists and deletes tracked connections.
	ct *ctConn
}

// OpenNamespace opens the network namespace that is mounted at path, or that a
// link like /proc/1/ns/net leads to. The error wraps ErrNoNetns when there is
// none: nothing at path, a plain file, or a namespace of another type.
func (n *Net) OpenNamespace(path string) (*Namespace, error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	return ns, nil
}

func openNamespace(path string) (*Namespace, error) {
	// A pipe at path would block an open without O_NONBLOCK.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoNetns, err)
	}
	ns := &Namespace{path: path, fd: fd}
	if err := ns.identify(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return ns, nil
}

// identify checks that what is open is a network namespace and learns which.
func (ns *Namespace) identify() error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(ns.fd, &fs); err != nil {
		return fmt.Errorf("%w: %w", ErrNoNetns, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%w: it is a file of another kind (a namespace mounted for another process looks so)", ErrNoNetns)
	}
	kind, err := unix.IoctlRetInt(ns.fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoNetns, err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%w: it is a namespace of another type", ErrNoNetns)
	}
	var st unix.Stat_t
	if err := unix.Fstat(ns.fd, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrNoNetns, err)
	}
	ns.dev, ns.inode = st.Dev, st.Ino
	return nil
}

// Path is what the namespace was opened with.
func (ns *Namespace) Path() string { return ns.path }

// ID tells namespaces apart while they are open; numbers may come again after
// the namespace is gone.
func (ns *Namespace) ID() (dev, inode uint64) { return ns.dev, ns.inode }

// Close closes the namespace and what was opened in it.
func (ns *Namespace) Close() error {
	var errs []error
	if ns.conn != nil {
		errs = append(errs, ns.conn.Close())
		ns.conn = nil
	}
	if ns.ct != nil {
		errs = append(errs, ns.ct.Close())
		ns.ct = nil
	}
	if ns.fd != 0 {
		errs = append(errs, unix.Close(ns.fd))
		ns.fd = -1 // which none has: 0 would be the process's own namespace
	}
	return errors.Join(errs...)
}

// IsHost tells whether ns is the namespace that this process runs in.
func (n *Net) IsHost(ns *Namespace) (bool, error) {
	host, err := openNamespace(threadNamespace)
	if err != nil {
		return false, fmt.Errorf("open own namespace: %w", err)
	}
	defer host.Close()
	return host.dev == ns.dev && host.inode == ns.inode, nil
}

// socket is the namespace's rtnetlink connection, opened on first use.
func (ns *Namespace) socket() (*rtnl.Conn, error) {
	if ns.conn != nil {
		return ns.conn, nil
	}
	err := ns.visit(func() error {
		var err error
		ns.conn, err = rtnl.Open()
		return err
	})
	return ns.conn, err
}

// visit runs f with the calling thread in the namespace. Goroutines that f starts run elsewhere.
func (ns *Namespace) visit(f func() error) error {
	if ns.fd == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := openHome()
	if err != nil {
		return err
	}
	defer unix.Close(home) //nolint:errcheck // opened for reading
	return ns.enter(home, f)
}

// openHome opens the namespace of the thread.
func openHome() (int, error) {
	home, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open own namespace: %w", err)
	}
	return home, nil
}

// enter runs f in the namespace and brings the thread back home. If that fails,
// which the kernel has no reason for, the process ends where it stands: nothing else
// may run in the wrong namespace, and whoever is killed leaves nothing that is not
// found again.
func (ns *Namespace) enter(home int, f func() error) error {
	if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
		return nlconn.Explain(err, fmt.Sprintf("enter namespace %q", ns.path))
	}
	defer func() {
		if unix.Setns(home, unix.CLONE_NEWNET) != nil {
			die()
		}
	}()
	return f()
}

// die ends the process without another step.
func die() { _ = unix.Kill(unix.Getpid(), unix.SIGKILL) }
