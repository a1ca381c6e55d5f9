package boltfile

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

// A file beside the locked one names the last holder of the lock as
// "pid since role". The text is padded with spaces to holderSize, so that a
// shorter one overwrites a longer one.
const (
	holderSuffix = ".holder"
	holderSize   = 96
)

// noteHolder writes this process into the side file. Errors are ignored, because the lock is valid
// without it. A reader does not create the file.
func (f *File) noteHolder(o *opened, write bool) {
	var st unix.Stat_t
	if o.holder != nil && unix.Fstat(int(o.holder.Fd()), &st) == nil && st.Nlink == 0 { // it was removed
		_ = o.holder.Close()
		o.holder = nil
	}
	if o.holder == nil {
		flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if write {
			flags |= unix.O_CREAT
		}
		fd, err := openat(unix.AT_FDCWD, f.Path+holderSuffix, flags, 0o600)
		if err != nil {
			return
		}
		o.holder = os.NewFile(uintptr(fd), f.Path+holderSuffix)
	}
	line := make([]byte, 0, holderSize)
	line = strconv.AppendInt(line, int64(os.Getpid()), 10)
	line = append(line, ' ')
	line = time.Now().UTC().AppendFormat(line, time.RFC3339)
	line = append(line, ' ')
	line = append(line, strings.Join(strings.Fields(f.Role), "-")...)
	line = append(line[:min(len(line), holderSize-1)], '\n')
	line = append(line, bytes.Repeat([]byte{' '}, holderSize-len(line))...)
	_, _ = unix.Pwrite(int(o.holder.Fd()), line, 0)
}

// holder returns ": held by …" for an ErrBusy, or "" if the holder is unknown.
func (f *File) holder(err error) string {
	if !errors.Is(err, ErrBusy) {
		return ""
	}
	fd, err := openat(unix.AT_FDCWD, f.Path+holderSuffix, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
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
