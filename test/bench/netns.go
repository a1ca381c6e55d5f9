package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// settleTime is granted to the kernel after namespaces were dropped: it takes them apart later, in a worker that would slow the next section.
const settleTime = 1500 * time.Millisecond

// container is what a runtime would hand to a plugin.
type container struct {
	ID    string
	Netns string
}

// newContainers makes n containers, each an empty network namespace bound under /run/netns, before any clock is started.
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

// dropContainers releases the namespaces and lets the kernel finish with them.
func dropContainers(containers []container) error {
	var errs []error
	for _, c := range containers {
		if err := unix.Unmount(c.Netns, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("release %q: %w", c.Netns, err))
			continue
		}
		if err := os.Remove(c.Netns); err != nil {
			errs = append(errs, fmt.Errorf("remove mount point: %w", err))
		}
	}
	time.Sleep(settleTime)
	return errors.Join(errs...)
}
