package migrate

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
	// volatileDir is on a file system that is made at boot.
	volatileDir = "/run"
)

// lifetime is the time since boot. The clock may have been stepped in between,
// as it is soon after the boot of a machine whose clock does not run while it is
// off: a file that was made before that has a time of the clock of then.
type lifetime struct {
	// start is when the machine started by the clock of now.
	start time.Time
	// then is when it started by the clock of then; zero if that is unknown.
	then time.Time
	// length is the time since then.
	length time.Duration
}

// has reports whether a file with that time was made since boot.
func (l lifetime) has(t time.Time) bool {
	if !t.Before(l.start) {
		return true
	}
	return !l.then.IsZero() && !t.Before(l.then) && !t.After(l.then.Add(l.length))
}

// thisBoot is the time since this boot.
func thisBoot() (lifetime, error) {
	start, err := startTime(statFile)
	if err != nil {
		return lifetime{}, fmt.Errorf("find boot time: %w", err)
	}
	return lifetime{start: start, then: madeTime(volatileDir), length: time.Since(start)}, nil
}

// startTime is when the machine started by the clock of now, of proc_stat(5).
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
	return time.Time{}, errors.New(file + " has none")
}

// madeTime is when a directory was made, if it is in memory (statx(2), tmpfs(5)):
// else, or before Linux 5.18, it is zero.
func madeTime(dir string) time.Time {
	var fs unix.Statfs_t
	var st unix.Statx_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC ||
		unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
}
