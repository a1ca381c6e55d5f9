package boltfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// bootDir is the directory of one boot, below the directory of all boots.
type bootDir struct{ root, id string }

// NewBootDir returns the directory root/id, which has the state of one boot. Creating it removes the
// directories of other boots, whose state is not valid any more.
func NewBootDir(root, id string) *Dir {
	return &Dir{path: filepath.Join(root, id), own: 2, boot: &bootDir{root: root, id: id}}
}

// check returns an error for an id that could be the path of another directory.
func (b *bootDir) check() error {
	if !isBootID(b.id) {
		return fmt.Errorf("open store: boot id %q: %w: not of the form of a UUID", b.id, kv.ErrInvalid)
	}
	return nil
}

func (b *bootDir) removeOthers() error {
	root, err := os.OpenRoot(b.root)
	if err != nil {
		return fmt.Errorf("remove old boots: %w", err)
	}
	defer root.Close() //nolint:errcheck // a directory opened for reading
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("remove old boots: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && isBootID(e.Name()) && e.Name() != b.id {
			if err := root.RemoveAll(e.Name()); err != nil {
				return fmt.Errorf("remove old boots: %w", err)
			}
		}
	}
	return nil
}

// isBootID reports whether a text has the form of
// /proc/sys/kernel/random/boot_id: 8-4-4-4-12 lower-case hexadecimal digits.
func isBootID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// ReadBootID reads the kernel's boot id. It does not use package os, which would create an epoll
// instance for a file of /proc/sys. That takes 40 µs, and a call may not need it otherwise.
func ReadBootID() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	return strings.TrimSpace(string(buf[:n])), nil
}
