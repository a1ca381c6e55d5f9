package agent

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// removal watches for the removal of files and of their directories (inotify(7)).
type removal struct {
	file  *os.File
	names []string
	dirs  []string
	ch    chan struct{}
	done  chan struct{}
}

// watchRemoval prepares to watch the files. The caller must call addWatches.
func watchRemoval(paths ...string) (*removal, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	r := &removal{file: os.NewFile(uintptr(fd), "inotify"), ch: make(chan struct{}, 1), done: make(chan struct{})}
	for _, p := range paths {
		if p != "" {
			r.names, r.dirs = append(r.names, filepath.Base(p)), append(r.dirs, filepath.Dir(p))
		}
	}
	go r.listen()
	return r, nil
}

// changes fires once for removals that happen together.
func (r *removal) changes() <-chan struct{} { return r.ch }

// addWatches watches the directories that exist now. A directory that was made again needs a new
// watch. A missing directory is skipped.
func (r *removal) addWatches() {
	for _, dir := range r.dirs {
		conn, err := r.file.SyscallConn()
		if err != nil {
			return
		}
		_ = conn.Control(func(fd uintptr) {
			_, _ = unix.InotifyAddWatch(int(fd), dir, unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
		})
	}
}

func (r *removal) close() {
	_ = r.file.Close()
	<-r.done
}

func (r *removal) listen() {
	defer close(r.done)
	b := make([]byte, 64<<10)
	for {
		n, err := r.file.Read(b)
		if err != nil {
			return
		}
		if !r.isRelevant(b[:n]) {
			continue
		}
		select {
		case r.ch <- struct{}{}:
		default:
		}
	}
}

// isRelevant reports whether one of the events concerns the files or directories.
func (r *removal) isRelevant(b []byte) bool {
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return true // truncated: assume a change
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_Q_OVERFLOW) != 0 || slices.Contains(r.names, string(name)) {
			return true
		}
	}
	return false
}
