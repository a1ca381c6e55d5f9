package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Who holds a file's lock stands in a file beside it, so that a waiter can name
// the holder: "pid since role", filled up with spaces to holderSize, since when
// the lock is free the last holder's stays.
const (
	holderSuffix = ".holder"
	holderSize   = 96
)

// noteHolder writes this process into the side file. It is done as well as
// possible: a lock is good without it. A reader makes no file.
func (f *file) noteHolder(o *opened, write bool) {
	if o.holder != nil && isUnlinked(o.holder) {
		_ = o.holder.Close()
		o.holder = nil
	}
	if o.holder == nil {
		flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if write {
			flags |= unix.O_CREAT
		}
		fd, err := openat(unix.AT_FDCWD, f.path+holderSuffix, flags, 0o600)
		if err != nil {
			return
		}
		o.holder = os.NewFile(uintptr(fd), f.path+holderSuffix)
	}
	line := make([]byte, 0, holderSize)
	line = strconv.AppendInt(line, int64(os.Getpid()), 10)
	line = append(line, ' ')
	line = time.Now().UTC().AppendFormat(line, time.RFC3339)
	line = append(line, ' ')
	line = append(line, strings.Join(strings.Fields(f.s.o.Role), "-")...)
	line = append(line[:min(len(line), holderSize-1)], '\n')
	line = append(line, bytes.Repeat([]byte{' '}, holderSize-len(line))...)
	_, _ = unix.Pwrite(int(o.holder.Fd()), line, 0)
}

// isUnlinked tells whether an open file was removed.
func isUnlinked(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink == 0
}

// holder is ": held by …" for an ErrBusy, as far as that is known.
func (f *file) holder(err error) string {
	if !errors.Is(err, ErrBusy) {
		return ""
	}
	fd, err := openat(unix.AT_FDCWD, f.path+holderSuffix, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	buf := make([]byte, holderSize)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(buf[:n]))
	if len(fields) < 2 {
		return ""
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		return ""
	}
	role := "role not known"
	if len(fields) > 2 {
		role = fields[2]
	}
	return fmt.Sprintf(": held by process %d (%s) since %s", pid, role, fields[1])
}
