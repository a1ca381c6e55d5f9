package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// privateHost makes mounts private, mounts an empty /run and a new /proc, brings lo up, and turns off forwarding, which a new
// namespace inherits.
func privateHost() error {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("make mounts private: %w: the root directory is not a mount point: for a chroot in DIR, run 'mount --bind DIR DIR' before chroot", err)
	}
	if err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, at, options string }{{"proc", "/proc", ""}, {"tmpfs", "/run", "mode=0755"}, {"sysfs", "/sys", ""}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644); err != nil {
		return err
	}
	return loopbackUp()
}

// loopbackUp brings lo up by SIOCSIFFLAGS (netdevice(7)).
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}

// InNetns runs f on a thread in a named network namespace; "" is the host's.
// Sockets made and programs started by f are in that namespace.
func InNetns(name string, f func() error) error {
	if name == "" {
		return f()
	}
	ns, err := os.Open(filepath.Join("/run/netns", name))
	if err != nil {
		return err
	}
	defer ns.Close()
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it, since f may change the thread's namespaces.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
