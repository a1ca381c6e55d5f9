package agent

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// fileMonitor notifies when another program writes, replaces or removes files, or removes their
// directories (inotify(7)).
type fileMonitor struct {
	file  *os.File
	names []string
	dirs  []string
	ch    chan struct{}
	done  chan struct{}
}

// openFileMonitor prepares to watch the files. The caller must call addWatches.
func openFileMonitor(paths ...string) (*fileMonitor, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	m := &fileMonitor{file: os.NewFile(uintptr(fd), "inotify"), ch: make(chan struct{}, 1), done: make(chan struct{})}
	for _, p := range paths {
		if p != "" {
			m.names = append(m.names, filepath.Base(p))
			if dir := filepath.Dir(p); !slices.Contains(m.dirs, dir) {
				m.dirs = append(m.dirs, dir)
			}
		}
	}
	go m.listen()
	return m, nil
}

// changes fires once for changes that happen together.
func (m *fileMonitor) changes() <-chan struct{} { return m.ch }

// addWatches watches the directories that exist now. A directory that was made again needs a new
// watch. A missing directory is skipped.
func (m *fileMonitor) addWatches() {
	for _, dir := range m.dirs {
		conn, err := m.file.SyscallConn()
		if err != nil {
			return
		}
		_ = conn.Control(func(fd uintptr) {
			_, _ = unix.InotifyAddWatch(int(fd), dir, unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
		})
	}
}

func (m *fileMonitor) close() {
	_ = m.file.Close()
	<-m.done
}

func (m *fileMonitor) listen() {
	defer close(m.done)
	b := make([]byte, 64<<10)
	for {
		n, err := m.file.Read(b)
		if err != nil {
			return
		}
		if !m.isRelevant(b[:n]) {
			continue
		}
		select {
		case m.ch <- struct{}{}:
		default:
		}
	}
}

// isRelevant reports whether one of the events concerns the files or directories.
func (m *fileMonitor) isRelevant(b []byte) bool {
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return true // truncated: assume a change
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_Q_OVERFLOW) != 0 || slices.Contains(m.names, string(name)) {
			return true
		}
	}
	return false
}
