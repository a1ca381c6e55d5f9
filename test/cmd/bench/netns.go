package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// settleLink is a veth pair between the host and the last container that is removed. The kernel removes namespaces in the background,
// one after the other, which would slow the next section. When the pair no longer exists, all are removed.
const (
	settleLink = "benchsettle"
	settleTime = 30 * time.Second
)

// container is what a runtime passes to a plugin.
type container struct {
	ID    string
	Netns string
}

// newContainers makes n containers, each an empty network namespace bound under /run/netns, before anything is timed.
func newContainers(prefix string, n int) ([]container, error) {
	containers := make([]container, 0, n)
	for i := range n {
		c := container{ID: prefix + "-" + strconv.Itoa(i)}
		c.Netns = filepath.Join(netnsDir, c.ID)
		if err := makeNetns(c.Netns); err != nil {
			return containers, errors.Join(err, dropContainers(containers))
		}
		containers = append(containers, c)
	}
	return containers, nil
}

// makeNetns binds a new network namespace to path. The thread that entered it is never used again.
func makeNetns(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close mount point: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		// Not unlocked on purpose: the runtime ends the thread with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make network namespace: %w", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("bind network namespace to %q: %w", path, err)
			return
		}
		done <- nil
	}()
	return <-done
}

// dropContainers releases the namespaces and waits until the kernel has removed them.
func dropContainers(containers []container) error {
	if len(containers) == 0 {
		return nil
	}
	gone, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(gone, done); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	errs := []error{addSettleLink(containers[len(containers)-1])}
	for _, c := range containers {
		if err := unix.Unmount(c.Netns, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("release %q: %w", c.Netns, err))
			continue
		}
		if err := os.Remove(c.Netns); err != nil {
			errs = append(errs, fmt.Errorf("remove mount point: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for late := time.After(settleTime); ; {
		select {
		case u := <-gone:
			if u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == settleLink {
				return nil
			}
		case <-late:
			return fmt.Errorf("namespace of %q still exists: a process holds it open", containers[len(containers)-1].ID)
		}
	}
}

// addSettleLink makes the pair.
func addSettleLink(c container) error {
	ns, err := os.Open(c.Netns)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer ns.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: settleLink}, PeerName: settleLink, PeerNamespace: netlink.NsFd(int(ns.Fd()))}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make the pair %s: %w", settleLink, err)
	}
	return nil
}
