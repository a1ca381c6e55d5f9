// Package sandbox keeps plugins from changing the machine.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Enter prepares the mount namespace of this process for plugins that must not change the machine: everything
// becomes read-only, except for empty /run, /tmp and /var/lib, in memory, and the sysctls of the network
// namespace. The directories in keep, and those to which links in them lead, stay where they are. The process must
// have its own mount and network namespaces, and Enter fails if it has those of its parent. Before Linux 5.12
// mounts stay writable, and the error wraps errors.ErrUnsupported.
func Enter(keep []string) error {
	// In a PID namespace of its own the process has no parent but in the /proc from outside.
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(string(status), "\nPPid:\t")
	ppid, _, _ := strings.Cut(after, "\n")
	for _, kind := range []string{"mnt", "net"} {
		var own, parent unix.Stat_t
		err := errors.Join(unix.Stat("/proc/self/ns/"+kind, &own), unix.Stat("/proc/"+ppid+"/ns/"+kind, &parent))
		if err != nil || own.Ino == parent.Ino {
			return errors.Join(fmt.Errorf("make a sandbox: %w: the process is in the namespaces of its parent", nlconn.ErrInvalid), err)
		}
	}
	var kept []*os.File // opened now, because the mounts may cover them
	for _, name := range withLinked(keep) {
		dir, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer dir.Close() //nolint:errcheck // nothing was written
		kept = append(kept, dir)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	readOnly := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if readOnly != nil {
		readOnly = fmt.Errorf("make mounts read-only: %w (Linux 5.12 is required)", readOnly)
		if !errors.Is(readOnly, errors.ErrUnsupported) {
			return readOnly
		}
	}
	for _, m := range [][2]string{{"/run", "tmpfs"}, {"/tmp", "tmpfs"}, {"/var/lib", "tmpfs"}, {"/sys", "sysfs"}} {
		if err := mountEmpty(m[0], m[1]); err != nil {
			return err
		}
	}
	for _, dir := range kept {
		if err := mountKept(dir); err != nil {
			return err
		}
	}
	return errors.Join(mountEmpty("/proc", "proc"), readOnly)
}

func mountEmpty(at, kind string) error {
	if err := unix.Mount("none", at, kind, unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return nil
}

// mountKept mounts a directory where it was, if a mount covers it.
func mountKept(dir *os.File) error {
	have, err := dir.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(dir.Name()); err == nil && os.SameFile(have, now) {
		return nil
	}
	if err := os.MkdirAll(dir.Name(), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), dir.Name(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %q: %w", dir.Name(), err)
	}
	return nil
}

// withLinked returns directories and those to which links in them lead, parents first.
func withLinked(dirs []string) []string {
	all := slices.Clone(dirs)
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // the caller opens it
		for _, e := range entries {
			if file, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name())); err == nil {
				all = append(all, filepath.Dir(file))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
