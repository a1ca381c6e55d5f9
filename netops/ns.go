package netops

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/conntrack"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// threadNamespace is the path of the calling thread's network namespace.
const threadNamespace = "/proc/thread-self/ns/net"

// Namespace is an open network namespace. The kernel keeps it while it is open,
// even if its path is deleted. The zero value is the namespace of the process.
type Namespace struct {
	path string
	// fd is the file descriptor, or 0 for the namespace of the process.
	fd         netns.NsHandle
	dev, inode uint64
	conn       *rtnl.Conn
	// spent is the time of conn's requests, in nanoseconds. It may be nil.
	spent *atomic.Int64
	// ct lists and deletes tracked connections.
	ct *conntrack.Conn
	// settings has the sysctls that were read, of a Net that remembers. users is the number of calls that have it open.
	settings map[string]string
	users    int
}

// OpenNamespace opens the network namespace that is mounted at path, or that a
// magic link such as /proc/1/ns/net refers to. The error wraps ErrNoNetns if
// path does not exist, is a plain file, or is a namespace of another type. After
// any other error the namespace may exist.
func (n *Net) OpenNamespace(path string) (*Namespace, error) {
	if n.last != nil && n.last.path == path && n.last.users > 0 {
		n.last.users++
		return n.last, nil
	}
	ns, err := openNamespace(path)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	ns.spent = &n.spent.Rtnetlink
	if n.remembers {
		n.last, ns.users, ns.settings = ns, 1, map[string]string{}
	}
	return ns, nil
}

func openNamespace(path string) (*Namespace, error) {
	// Without O_NONBLOCK, which netns.GetFromPath lacks, opening a FIFO would block.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if isNoPath(err) {
		return nil, fmt.Errorf("%w: %w", ErrNoNetns, err)
	}
	if err != nil {
		return nil, nlconn.Explain(err, "look up the namespace")
	}
	ns := &Namespace{path: path, fd: netns.NsHandle(fd)}
	if err := ns.identify(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return ns, nil
}

// isNoPath reports whether an error of open(2) means that the path leads nowhere: it
// does not exist, or no file can have that name. Every other error, such as EMFILE or
// EACCES, says nothing about the namespace.
func isNoPath(err error) bool {
	return slices.Contains([]error{unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG, unix.EINVAL}, err)
}

// identify checks that the open file is a network namespace, and reads its ID.
func (ns *Namespace) identify() error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(ns.fd), &fs); err != nil {
		return nlconn.Explain(err, "identify the namespace")
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%w: it is a file of another kind (a namespace mounted for another process looks so)", ErrNoNetns)
	}
	kind, err := unix.IoctlRetInt(int(ns.fd), unix.NS_GET_NSTYPE)
	if err != nil {
		return nlconn.Explain(err, "identify the namespace")
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%w: it is a namespace of another type", ErrNoNetns)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.fd), &st); err != nil {
		return nlconn.Explain(err, "identify the namespace")
	}
	ns.dev, ns.inode = st.Dev, st.Ino
	return nil
}

// Path returns the path that the namespace was opened with.
func (ns *Namespace) Path() string { return ns.path }

// ID identifies the namespace while it is open. The kernel can reuse the numbers
// after the namespace is deleted.
func (ns *Namespace) ID() (dev, inode uint64) { return ns.dev, ns.inode }

// Close closes the namespace and the sockets in it.
func (ns *Namespace) Close() error {
	ns.users--
	if ns.users > 0 {
		return nil
	}
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
		errs = append(errs, ns.fd.Close()) // it becomes -1, because 0 means the namespace of the process
	}
	return errors.Join(errs...)
}

// IsHost reports whether ns is the network namespace of this process.
func (n *Net) IsHost(ns *Namespace) (bool, error) {
	host, err := netns.GetFromPath(threadNamespace)
	if err != nil {
		return false, fmt.Errorf("open own namespace: %w", err)
	}
	defer host.Close() //nolint:errcheck // opened for reading
	return host.Equal(ns.fd), nil
}

// socket returns the namespace's rtnetlink connection. It is opened on first
// use.
func (ns *Namespace) socket() (*rtnl.Conn, error) {
	if ns.conn != nil {
		return ns.conn, nil
	}
	err := ns.visit(func() error {
		var err error
		ns.conn, err = rtnl.Open()
		if err == nil {
			ns.conn.Spent = ns.spent
			ns.conn.Remember(ns.settings != nil)
		}
		return err
	})
	return ns.conn, err
}

// visit runs f on the calling thread in the namespace. Goroutines that f starts
// run in the namespace of the process.
func (ns *Namespace) visit(f func() error) error {
	if ns == nil || ns.fd == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.GetFromPath(threadNamespace)
	if err != nil {
		return fmt.Errorf("open own namespace: %w", err)
	}
	defer home.Close() //nolint:errcheck // opened for reading
	return ns.enter(home, f)
}

// enter runs f in the namespace and then returns the thread to home. If the
// return fails, which the kernel gives no reason for, enter kills the process:
// other code must not run in the wrong namespace. Recovery after a kill finds
// everything that the process left.
func (ns *Namespace) enter(home netns.NsHandle, f func() error) error {
	if err := netns.Set(ns.fd); err != nil {
		return nlconn.Explain(err, fmt.Sprintf("enter namespace %q", ns.path))
	}
	defer func() {
		if netns.Set(home) != nil {
			killProcess()
		}
	}()
	return f()
}

// killProcess kills the process immediately.
func killProcess() { _ = unix.Kill(unix.Getpid(), unix.SIGKILL) }
