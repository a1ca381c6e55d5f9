package leasefiles

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	statFile = "/proc/stat"
	// volatileDir is on a file system that is created at boot.
	volatileDir = "/run"
)

// bootTimes is the time since boot, by the present clock and by the clock at boot. They
// differ if the clock was stepped, for example soon after boot on a machine without a
// battery-backed clock. Files from before the step have times of the clock at boot.
type bootTimes struct {
	// start is the machine's start by the present clock.
	start time.Time
	// startAtBoot is the machine's start by the clock at boot; zero if it is unknown.
	startAtBoot time.Time
	// uptime is the time since the start.
	uptime time.Duration
}

// has reports whether a file with this time was made since boot.
func (l bootTimes) has(t time.Time) bool {
	if !t.Before(l.start) {
		return true
	}
	return !l.startAtBoot.IsZero() && !t.Before(l.startAtBoot) && !t.After(l.startAtBoot.Add(l.uptime))
}

// thisBoot returns the times of this boot.
func thisBoot() (bootTimes, error) {
	start, err := startTime(statFile)
	if err != nil {
		return bootTimes{}, fmt.Errorf("find boot time: %w", err)
	}
	return bootTimes{start: start, startAtBoot: creationTime(volatileDir), uptime: time.Since(start)}, nil
}

// startTime returns the machine's start by the present clock, from proc_stat(5).
func startTime(file string) (time.Time, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "btime "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			return time.Unix(n, 0), err
		}
	}
	return time.Time{}, errors.New(file + " contains no btime")
}

// creationTime returns the time at which a directory on a tmpfs was created (statx(2)).
// It returns zero for another file system, and before Linux 5.18.
func creationTime(dir string) time.Time {
	var fs unix.Statfs_t
	var st unix.Statx_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC ||
		unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
}
