package netops

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SandboxPlugins is where Sandbox mounts a directory of plugins.
const SandboxPlugins = "/run/plugins"

// Sandbox prepares the mount namespace of this process for plugins that must not change the machine: everything
// becomes read-only, except for empty /run, /tmp and /var/lib, in memory, and the sysctls of the network
// namespace. It mounts a directory of plugins, unless that is empty, and requires Linux 5.12. The process must
// have its own mount and network namespaces, and fails if it has those of its parent.
func Sandbox(plugins string) error {
	for _, kind := range []string{"mnt", "net"} {
		var own, parent unix.Stat_t
		err := errors.Join(unix.Stat("/proc/self/ns/"+kind, &own), unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", os.Getppid(), kind), &parent))
		if err != nil || own.Ino == parent.Ino {
			return errors.Join(fmt.Errorf("make a sandbox: %w: the process is in the namespaces of its parent", ErrInvalid), err)
		}
	}
	type mount struct {
		from, at, kind string
		flags          uintptr
	}
	const own = unix.MS_NOSUID | unix.MS_NODEV
	mounts := []mount{{"", "/run", "tmpfs", own}, {"", "/tmp", "tmpfs", own}, {"", "/var/lib", "tmpfs", own}, {"", "/sys", "sysfs", own}, {"", "/proc", "proc", own}}
	if plugins != "" { // opened now, because the mounts may cover it
		fd, err := unix.Open(plugins, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %q: %w", plugins, err)
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		mounts = append(mounts, mount{fmt.Sprintf("/proc/self/fd/%d", fd), SandboxPlugins, "", unix.MS_BIND})
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make mounts read-only: %w (Linux 5.12 is required)", err)
	}
	for _, m := range mounts {
		if m.at == SandboxPlugins {
			if err := os.Mkdir(m.at, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.from, m.at, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return nil
}
