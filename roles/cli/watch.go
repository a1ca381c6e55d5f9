package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
)

// watchQuiet is the time in which changes are combined.
const watchQuiet = 50 * time.Millisecond

// watch calls show now, and again after each change of the state file or of the host's
// interfaces, until ctx is done.
func (p *Process) watch(ctx context.Context, h *roles.Host, show func() error) error {
	links, err := h.Net.OpenLinkMonitor() //nolint:contextcheck // Close ends it
	if err != nil {
		return fmt.Errorf("watch the host's interfaces: %w", err)
	}
	defer links.Close() //nolint:errcheck // a socket that was only read
	var files <-chan struct{}
	for first := true; ; first = false {
		if files == nil { // the first attachment makes the directory, and an interface
			if files, err = watchFile(ctx, h.Store.Path()); err != nil {
				return err
			}
		}
		switch {
		case p.IsTerminal:
			fmt.Fprint(p.Stdout, "\x1b[H\x1b[2J")
		case !first:
			fmt.Fprintln(p.Stdout)
		}
		if err := show(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-links.Changes():
		case <-files:
			select {
			case <-ctx.Done():
			case <-time.After(watchQuiet):
			}
		}
	}
}

// watchFile returns a channel that receives a value after changes of a file. It returns nil if
// the directory does not exist.
func watchFile(ctx context.Context, path string) (<-chan struct{}, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE)
	if err != nil {
		_ = f.Close()
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("watch %q: %w", filepath.Dir(path), err)
	}
	changes := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { _ = f.Close() }) // ends Read
	go func() {
		events := make([]byte, 4096)
		for {
			n, err := f.Read(events)
			if err != nil {
				return
			}
			if !strings.Contains(string(events[:n]), filepath.Base(path)+"\x00") {
				continue // another file of the directory
			}
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes, nil
}
