package dir

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster"
)

var (
	// errMoved means that the watched directory was moved or removed.
	errMoved = errors.New("the directory was moved or removed")
	errShort = errors.New("inotify: truncated event")
)

// watched are the requested events: a file was written and closed, linked, renamed or removed, or a
// directory itself was moved or removed.
const watched = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// notifier is an inotify instance (inotify(7)) that watches some directories.
type notifier struct {
	file *os.File
	dirs []string
	// index is the position in dirs for a watch descriptor.
	index map[int32]int
	buf   []byte
}

// event is a change of name in a directory.
type event struct {
	mask uint32
	dir  int
	name string
}

func notify(dirs ...string) (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	// Non-blocking, so that the runtime's poller waits for it and Close ends a read.
	n := &notifier{file: os.NewFile(uintptr(fd), "inotify"), dirs: dirs, index: map[int32]int{}, buf: make([]byte, 64<<10)}
	for i, dir := range dirs {
		wd, err := n.add(dir)
		if err != nil {
			n.close()
			return nil, err
		}
		n.index[wd] = i
	}
	return n, nil
}

func (n *notifier) add(dir string) (wd int32, err error) {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var got int
	if cerr := raw.Control(func(fd uintptr) { got, err = unix.InotifyAddWatch(int(fd), dir, watched) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("watch %s: %w: %w", dir, cluster.ErrUnavailable, err)
	}
	return int32(got), nil
}

// checkPaths returns errMoved if a path is of another directory now. Adding a watch for the same
// directory returns the same descriptor.
func (n *notifier) checkPaths() error {
	for i, dir := range n.dirs {
		wd, err := n.add(dir)
		if err != nil {
			return err
		}
		if j, ok := n.index[wd]; !ok || j != i {
			return errMoved
		}
	}
	return nil
}

// read waits for events. If there is none within that time, it returns os.ErrDeadlineExceeded.
func (n *notifier) read(within time.Duration) ([]event, error) {
	if err := n.file.SetReadDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	got, err := n.file.Read(n.buf)
	if err != nil {
		return nil, err
	}
	return n.decode(n.buf[:got])
}

// decode decodes a sequence of struct inotify_event: wd, mask, cookie, len, and a
// name of len bytes, padded with zeros.
func (n *notifier) decode(b []byte) ([]event, error) {
	var out []event
	for len(b) > 0 {
		if len(b) < unix.SizeofInotifyEvent {
			return nil, errShort
		}
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := binary.NativeEndian.Uint32(b[12:])
		b = b[unix.SizeofInotifyEvent:]
		if uint64(size) > uint64(len(b)) {
			return nil, errShort
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		i, ok := n.index[wd]
		if !ok && mask&unix.IN_Q_OVERFLOW == 0 {
			continue
		}
		out = append(out, event{mask: mask, dir: i, name: string(name)})
	}
	return out, nil
}

// pending returns the events that have happened, without waiting.
func (n *notifier) pending() ([]event, error) {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var got int
	if cerr := raw.Control(func(fd uintptr) { got, err = unix.Read(int(fd), n.buf) }); cerr != nil || errors.Is(err, unix.EAGAIN) {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return n.decode(n.buf[:got])
}

func (n *notifier) close() { _ = n.file.Close() }
