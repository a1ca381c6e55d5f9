package boltfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holder returns ": held by …" for an ErrBusy, or "" if the holder is unknown. It reads the
// descriptors of all processes, so only a call that waited in vain may call it. The line in fdinfo
// (proc_pid_fdinfo(5)) is "lock: 1: OFDLCK ADVISORY WRITE -1 MAJOR:MINOR:INODE START END".
func (b *ByteLocks) holder(err error, at int64) string {
	if !errors.Is(err, ErrBusy) {
		return ""
	}
	path, start := filepath.Join(b.Dir.path, b.Name), strconv.FormatInt(at, 10)
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err != nil || name != path {
			continue
		}
		proc := filepath.Dir(filepath.Dir(fd))
		info, _ := os.ReadFile(filepath.Join(proc, "fdinfo", filepath.Base(fd)))
		for line := range strings.Lines(string(info)) {
			f := strings.Fields(line)
			if len(f) != 9 || f[0] != "lock:" || f[2] != "OFDLCK" || f[7] != start {
				continue
			}
			comm, _ := os.ReadFile(filepath.Join(proc, "comm"))
			return fmt.Sprintf(": held by process %s (%s)", filepath.Base(proc), strings.TrimSpace(string(comm)))
		}
	}
	return ""
}
