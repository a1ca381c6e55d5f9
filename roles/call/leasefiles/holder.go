package leasefiles

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockHolder returns ": held by …" for a lock that could not be taken, if /proc/locks
// contains the holder (proc_locks(5)); else "".
func lockHolder(f *os.File) string {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	pid := flockHolder(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
	if pid <= 0 {
		return "" // the holder is in another PID namespace
	}
	name := "name not known"
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		name = strings.TrimSpace(string(comm))
	}
	return fmt.Sprintf(": held by process %d (%.64s)", pid, name)
}

// flockHolder returns the PID of the holder of a file's flock(2) lock, or 0. A line is
// "1: FLOCK ADVISORY WRITE 1234 fd:01:5678 0 EOF". A waiting process's line has "->"
// before the kind.
func flockHolder(locks, file string) (pid int) {
	for line := range strings.Lines(locks) {
		if f := strings.Fields(line); len(f) >= 6 && f[1] == "FLOCK" && f[5] == file {
			pid, _ = strconv.Atoi(f[4])
			return pid
		}
	}
	return 0
}
