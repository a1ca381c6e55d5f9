// Package netopstest gives tests a separate network: a host namespace for the
// whole test binary, container namespaces, and the kernel's state as text.
package netopstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// insideEnv marks the test process in the new namespaces. Its value is "new",
// and "ready" when they are prepared, because a test can start its binary again.
const insideEnv = "CNIBOX_NETOPSTEST_HOST"

// Main is for TestMain. It runs the tests in a new network and mount namespace,
// with lo up, forwarding disabled and an empty /run. No test sees or changes the
// machine's network. Main does not return.
func Main(m *testing.M) { run(m, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS) }

// InitialMain is Main for tests of devices that the kernel returns to the
// machine's initial network namespace when their namespace is deleted. In the
// VM, which only the tests use, the initial namespace is the host.
func InitialMain(m *testing.M) {
	if os.Getenv(vmEnv) != "" {
		run(m, syscall.CLONE_NEWNS)
	}
	Main(m)
}

// run runs the tests in new namespaces of the given kinds.
func run(m *testing.M, kinds uintptr) {
	switch os.Getenv(insideEnv) {
	case "":
		os.Exit(reexec(kinds))
	case "new":
		err := prepare()
		if err == nil {
			err = os.Setenv(insideEnv, "ready")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "prepare a host of our own:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// reexec runs the test binary again in new namespaces, which end with it.
func reexec(kinds uintptr) int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"=new")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: kinds}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "run tests in namespaces of their own (needs root):", err)
	return 1
}

// prepare configures the new namespaces as a host.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	// sysfs shows the network devices of the namespace in which it was
	// mounted. The mount fails with EBUSY if /sys already belongs to this
	// namespace.
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount /sys: %w", err)
	}
	// A new namespace inherits forwarding. A test of forwarding would then
	// prove nothing.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o600); err != nil {
		return err
	}
	return errors.Join(linkUp("lo"), useIndex())
}

// useIndex uses up the first interface index after that of lo, as a host does
// for a device. If both ends of a veth have the same index, here and in a new
// container, the kernel treats each as a device without a lower link and reports
// its carrier up to a second late (linkwatch_urgent_event).
func useIndex() error {
	l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "first"}}
	return errors.Join(netlink.LinkAdd(l), netlink.LinkDel(l))
}

func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// NS is a container's network namespace, mounted at a path.
type NS struct{ path string }

// New creates a namespace that is deleted at the end of the test.
func New(t testing.TB) *NS {
	t.Helper()
	ns := &NS{path: t.TempDir() + "/netns"}
	f, err := os.Create(ns.path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), ns.path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(ns.path, unix.MNT_DETACH) })
	return ns
}

// At returns the existing namespace that is mounted at a path.
func At(path string) *NS { return &NS{path: path} }

// Path returns the value for CNI_NETNS.
func (ns *NS) Path() string { return ns.path }

// Remove deletes the namespace and its path. The kernel destroys the namespace
// asynchronously, and Remove waits for that: it adds a veth pair and waits until
// the host's end is deleted together with the namespace.
func (ns *NS) Remove(t testing.TB) {
	t.Helper()
	const name = "netopstest"
	gone, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(gone, done); err != nil {
		t.Fatal(err)
	}
	if err := ns.addPeer(name); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(ns.path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(ns.path); err != nil {
		t.Fatal(err)
	}
	late := time.After(await.Patience)
	for {
		select {
		case u := <-gone:
			if u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == name {
				return
			}
		case <-late:
			t.Fatalf("the namespace still exists: a process holds it open")
		}
	}
}

// addPeer creates a veth pair between the host and the namespace.
func (ns *NS) addPeer(name string) error {
	h, err := os.Open(ns.path)
	if err != nil {
		return err
	}
	defer h.Close()
	return netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(int(h.Fd())),
	})
}

// Do runs f on a thread in the namespace. Programs that f starts and sockets
// that it opens are in the namespace. f must not call t.Fatal.
func (ns *NS) Do(t testing.TB, f func() error) {
	t.Helper()
	if err := ns.run(f); err != nil {
		t.Fatal(err)
	}
}

// Link reads an interface of the namespace.
func (ns *NS) Link(t testing.TB, name string) netlink.Link {
	t.Helper()
	var l netlink.Link
	ns.Do(t, func() (err error) {
		l, err = netlink.LinkByName(name)
		return err
	})
	return l
}

func (ns *NS) run(f func() error) error {
	h, err := os.Open(ns.path)
	if err != nil {
		return err
	}
	defer h.Close()
	return onThread(func() error {
		if err := unix.Setns(int(h.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %q: %w", ns.path, err)
		}
		return f()
	})
}

// Reset sets lo down. A DEL that cannot reach the namespace leaves lo up.
func (ns *NS) Reset(t testing.TB) {
	t.Helper()
	ns.Do(t, func() error {
		l, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
}

// errEnded is the result of a function that ended its goroutine.
var errEnded = errors.New("the function of a namespace called t.Fatal, or ended its goroutine in another way")

// onThread runs f on a thread that ends afterwards. It never uses the process's
// first thread, which would not end and would stay in the other namespace.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onThread(f)
			return
		}
		err := errEnded
		defer func() { done <- err }()
		err = f()
	}()
	return <-done
}

// LinkChange changes an interface with the netlink library, which is independent
// of netops.
type LinkChange = func(netlink.Link) error

// Change changes an interface of the namespace.
func (ns *NS) Change(t testing.TB, name string, change LinkChange) {
	t.Helper()
	ns.Do(t, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = change(l)
		}
		if err != nil {
			return fmt.Errorf("change %s in the container: %w", name, err)
		}
		return nil
	})
}

// Rename renames an interface if it exists.
func (ns *NS) Rename(t testing.TB, from, to string) {
	t.Helper()
	ns.Do(t, func() error {
		l, err := netlink.LinkByName(from)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to))
	})
}
