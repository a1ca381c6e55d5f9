package dir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// rescan is the default interval of full comparisons, for changes that inotify does not report.
const rescan = 30 * time.Second

// file is a file as a watch reads it. If it cannot be read, err is the reason.
type file struct {
	name string
	text []byte
	err  error
}

// consumer is what a watch is for: the nodes, or the texts of a collection.
type consumer interface {
	cluster.Follower[file]
	// make makes the directory. list returns the names of the files that may have changed, which are all at the first call.
	make() error
	list(ctx context.Context) (names []string, err error)
}

// watch follows the files of a directory in the registry.
type watch struct {
	r  *Registry
	to consumer
	// dir is the directory's name, and limit bounds the size of a file.
	dir   string
	limit int64
	// config is true if all files are read again when the configuration is written. current is true if a full comparison opens each file:
	// on network file systems only that certainly shows the changes of other machines, and it costs a request for each file.
	config, current bool
	// seen has the files that were read, and is nil if all files must be read.
	seen map[string]stamp
}

// stamp identifies the file that was read.
type stamp struct {
	inode, size uint64
	mtime       time.Time
}

// run reports the files and their changes. It returns ctx's error.
func (w *watch) run(ctx context.Context) error {
	wait := web.Backoff{Max: 2 * time.Second}
	for {
		err := w.follow(ctx, &wait)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, cluster.ErrUnavailable) && !errors.Is(err, cluster.ErrInvalid) {
			err = fmt.Errorf("watch cluster directory: %w: %w", cluster.ErrUnavailable, err)
		}
		w.to.Failed(err)
		if err := wait.Wait(ctx, 0); err != nil {
			return err
		}
	}
}

// follow reports the directory's state and its changes until it fails.
func (w *watch) follow(ctx context.Context, wait *web.Backoff) error {
	if err := w.to.make(); err != nil {
		return err
	}
	in, err := notify(w.r.o.Dir, filepath.Join(w.r.o.Dir, w.dir))
	if err != nil {
		return err
	}
	defer in.close()
	defer context.AfterFunc(ctx, in.close)()
	// Read everything again, because this may be another directory.
	w.seen = nil
	for due := true; ; {
		if due {
			if err := w.readAll(ctx); err != nil {
				return err
			}
			wait.Reset()
		}
		if due, err = w.next(in); err != nil {
			return err
		}
	}
}

// vanished are the events of a directory that is not at its path any more.
const vanished = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_IGNORED | unix.IN_UNMOUNT

// next waits for changes and reads the files. due means that it is time for a full comparison.
func (w *watch) next(in *notifier) (due bool, err error) {
	events, err := in.read(w.r.o.Rescan)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true, in.checkPaths()
	}
	if err != nil {
		return false, err
	}
	for _, e := range events {
		switch {
		case e.mask&unix.IN_Q_OVERFLOW != 0:
			w.seen = nil
			return true, nil
		case e.mask&vanished != 0:
			return false, errMoved
		case e.mask&unix.IN_CREATE != 0 && unfinished(filepath.Join(in.dirs[e.dir], e.name)):
			// The file is being written. An event follows when it is closed.
		case e.dir == 0 && w.config && e.name == configFile:
			w.seen = nil
			return true, nil
		case e.dir == 1:
			if name, ok := nameOf(e.name); ok {
				w.read(name, false)
			}
		}
	}
	return false, nil
}

// readAll reads the files that have changed, removed ones first. A file that the list lacks may be there: on some file
// systems that is so while it is being replaced.
func (w *watch) readAll(ctx context.Context) error {
	names, err := w.to.list(ctx)
	if err != nil {
		return err
	}
	before, listing := w.seen, w.seen == nil
	w.seen = make(map[string]stamp, len(names))
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
	}
	for name := range before {
		if !present[name] {
			w.read(name, listing)
		}
	}
	for _, name := range names {
		is, err := stampOf(w.path(name), w.current)
		if err == nil && before[name] == is {
			w.seen[name] = is
		} else if !w.read(name, listing) {
			delete(present, name)
		}
	}
	if listing {
		w.to.Complete(present)
	}
	return nil
}

func (w *watch) path(name string) string { return filepath.Join(w.r.o.Dir, w.dir, name+suffix) }

// read reads a file, and reports whether it exists. It takes the stamp first, so that a change during the reading is noticed.
func (w *watch) read(name string, listing bool) bool {
	is, err := stampOf(w.path(name), false)
	var text []byte
	if !errors.Is(err, fs.ErrNotExist) {
		text, err = smallfile.ReadOwn(w.path(name), w.limit)
	}
	if errors.Is(err, fs.ErrNotExist) {
		delete(w.seen, name)
		w.to.Remove(name, listing)
		return false
	}
	if unread(err) != nil {
		is = stamp{} // the next comparison reads it again
	}
	w.seen[name] = is
	w.to.Put(file{name, text, err}, listing)
	return true
}

// unfinished reports whether a file that was just created is still being written, so that another
// event follows. For a file that was linked to its name, and for one that is not regular, none does.
func unfinished(path string) bool {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		return false
	}
	b, err := smallfile.Read(path, max(maxConfig, maxRecord, cluster.MaxPage))
	return err != nil || !json.Valid(b)
}

// stampOf returns the stamp of a file, which it opens if current is true. A link cannot be opened.
func stampOf(path string, current bool) (stamp, error) {
	var st unix.Stat_t
	var err error
	if current {
		err = statOpen(path, &st)
	} else {
		err = unix.Lstat(path, &st)
	}
	if err != nil {
		return stamp{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stamp{inode: st.Ino, size: uint64(st.Size), mtime: time.Unix(st.Mtim.Unix())}, nil
}

func statOpen(path string, st *unix.Stat_t) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fstat(fd, st), unix.Close(fd))
}
