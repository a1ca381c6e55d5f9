package policy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// changed are files of a directory that changed. The value is true for one that was renamed to its name, and is complete. With all any file may
// have changed.
type changed struct {
	names map[string]bool
	all   bool
}

// watcher collects the changes in a directory (inotify(7)).
type watcher struct {
	path string
	file *os.File
	// changed receives a value after a change.
	changed chan struct{}

	mu sync.Mutex
	// dir is the watch of the directory, or -1. links are those of the directories that have a part of the path, by watch: a symbolic
	// link may be changed to lead to another directory, and a directory that is absent may be made.
	dir    int32
	links  map[int32]map[string]bool
	events changed
}

const (
	// fileEvents are those after which a file of the directory is read. A file that was only created is in writing, unless it is a link.
	fileEvents = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CREATE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	linkEvents = unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CREATE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
)

// openWatcher begins to watch. Without inotify only rescans find changes.
func openWatcher(path string) *watcher {
	w := &watcher{path: path, changed: make(chan struct{}, 1), dir: -1, events: changed{map[string]bool{}, true}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return w
	}
	w.file = os.NewFile(uintptr(fd), "inotify")
	w.mu.Lock()
	w.watch()
	w.mu.Unlock()
	go w.listen()
	return w
}

func (w *watcher) close() {
	if w.file != nil {
		_ = w.file.Close()
	}
}

// take returns the changes since the last call.
func (w *watcher) take() changed {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = changed{names: map[string]bool{}}
	return events
}

// all makes the next take return all files, and watches again what may have been made since.
func (w *watcher) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.all = true
	if w.file != nil {
		w.watch()
	}
}

// watch watches the directory, and those that lead to it. A watch that exists stays.
func (w *watcher) watch() {
	old := w.links
	w.links = map[int32]map[string]bool{}
	const most = 40 // links of a path, as the kernel allows
	w.watchPath(filepath.Clean(w.path), most)
	dir := w.add(w.path, fileEvents|unix.IN_ONLYDIR)
	if w.dir >= 0 && w.dir != dir && w.links[w.dir] == nil {
		w.remove(w.dir)
	}
	w.dir = dir
	for wd := range old {
		if w.links[wd] == nil && wd != dir {
			w.remove(wd)
		}
	}
}

// watchPath watches the parent of a path, of each symbolic link in it and in what these lead to, and of what is absent.
func (w *watcher) watchPath(path string, most int) {
	at := "/"
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		parent := at
		at = filepath.Join(parent, part)
		target, err := os.Readlink(at)
		isAbsent := errors.Is(err, fs.ErrNotExist)
		if err == nil || isAbsent || at == path {
			if wd := w.add(parent, linkEvents); wd >= 0 {
				if w.links[wd] == nil {
					w.links[wd] = map[string]bool{}
				}
				w.links[wd][part] = true
			}
		}
		if isAbsent {
			return
		}
		if err == nil && most > 0 {
			if !filepath.IsAbs(target) {
				target = filepath.Join(parent, target)
			}
			w.watchPath(target, most-1)
		}
	}
}

func (w *watcher) add(path string, events uint32) (wd int32) {
	wd = -1
	w.control(func(fd int) {
		if n, err := unix.InotifyAddWatch(fd, path, events|unix.IN_MASK_ADD); err == nil {
			wd = int32(n)
		}
	})
	return wd
}

func (w *watcher) remove(wd int32) {
	w.control(func(fd int) { _, _ = unix.InotifyRmWatch(fd, uint32(wd)) })
}

func (w *watcher) control(do func(fd int)) {
	if conn, err := w.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { do(int(fd)) })
	}
}

func (w *watcher) listen() {
	b := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(b)
		if err != nil {
			return
		}
		if !w.note(b[:n]) {
			continue
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// note notes events, and reports whether any concerns the directory.
func (w *watcher) note(b []byte) (concerns bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask, size := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return concerns
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		concerns = w.noteOne(wd, mask, string(name)) || concerns
	}
	return concerns
}

func (w *watcher) noteOne(wd int32, mask uint32, name string) bool {
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0 || w.links[wd][name] || mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		w.events.all = true
		w.watch()
		return true
	case wd != w.dir || mask&unix.IN_IGNORED != 0:
		return false
	case mask&unix.IN_CREATE != 0 && !w.isLink(name):
		return false // its closing is notified
	case !isPolicyFile(name): // other files may lead through it
		if !w.isLink(name) {
			return false
		}
		w.events.all = true
		return true
	}
	w.events.names[name] = mask&unix.IN_MOVED_TO != 0
	return true
}

// isLink reports whether a name of the directory is another one of a file that exists already.
func (w *watcher) isLink(name string) bool {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(w.path, name), &st)
	return err == nil && (st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Nlink > 1)
}
