package dir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// rescan is the interval of full comparisons, for changes that inotify does not
// report.
const rescan = 30 * time.Second

// Watch reports the content of the files. It returns ctx's error.
func (r *Registry) Watch(ctx context.Context, to *cluster.Relay) error {
	wait := web.Backoff{Max: 2 * time.Second}
	v := &view{r: r, relay: to}
	for {
		err := v.follow(ctx, &wait)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, cluster.ErrUnavailable) && !errors.Is(err, cluster.ErrInvalid) {
			err = fmt.Errorf("watch cluster directory: %w: %w", cluster.ErrUnavailable, err)
		}
		to.Fail(err)
		if err := wait.Wait(ctx, 0); err != nil {
			return err
		}
	}
}

// view is the state of one Watch.
type view struct {
	r     *Registry
	relay *cluster.Relay
	table cluster.Table
	seen  map[string]stamp
}

// stamp identifies the file that was read.
type stamp struct {
	inode, size uint64
	mtime       time.Time
}

// follow reports the directory's state and its changes until it fails.
func (v *view) follow(ctx context.Context, wait *web.Backoff) error {
	if err := v.r.makeNodes(); err != nil {
		return err
	}
	in, err := notify(v.r.o.Dir, filepath.Join(v.r.o.Dir, nodesDir))
	if err != nil {
		return err
	}
	defer in.close()
	defer context.AfterFunc(ctx, in.close)()
	// Read everything again, because this may be another directory.
	v.seen = nil
	for {
		_, err := v.readAll()
		if err == nil {
			break
		}
		if v.table.Config() != nil {
			return err
		}
		v.relay.Fail(err)
		if err := v.awaitChange(in); err != nil {
			return err
		}
	}
	wait.Reset()
	v.relay.Put(v.table.Snapshot)
	for {
		changed, err := v.next(in)
		if err != nil {
			return err
		}
		if changed {
			v.relay.Put(v.table.Snapshot)
		}
	}
}

// awaitChange waits until there may be another configuration.
func (v *view) awaitChange(in *notifier) error {
	events, err := in.read(v.r.rescan)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return in.checkPaths()
	}
	if slices.ContainsFunc(events, func(e event) bool { return e.mask&vanished != 0 }) {
		return errMoved
	}
	return err
}

// vanished are the events of a directory that is not at its path any more.
const vanished = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_IGNORED | unix.IN_UNMOUNT

// next waits for changes, or for the next full comparison.
func (v *view) next(in *notifier) (bool, error) {
	events, err := in.read(v.r.rescan)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if err := in.checkPaths(); err != nil {
			return false, err
		}
		return v.readAll()
	}
	if err != nil {
		return false, err
	}
	changed := false
	for _, e := range events {
		switch {
		case e.mask&unix.IN_Q_OVERFLOW != 0:
			v.seen = nil
			return v.readAll()
		case e.mask&vanished != 0:
			return false, errMoved
		case e.mask&unix.IN_CREATE != 0 && unfinished(filepath.Join(in.dirs[e.dir], e.name)):
			// The file is being written. An event follows when it is closed.
		case e.dir == 0 && e.name == configFile:
			// Every record is checked again with the new configuration.
			v.seen = nil
			return v.readAll()
		case e.dir == 1:
			if name, ok := nameOf(e.name); ok && v.readNode(name) {
				changed = true
			}
		}
	}
	return changed, nil
}

// readAll reads the configuration and the records that have changed. If the configuration is invalid,
// the last valid one is used.
func (v *view) readAll() (bool, error) {
	config, warnings, err := v.r.config()
	if err != nil && v.table.Config() == nil {
		return false, err
	}
	changed := false
	if err != nil {
		changed = v.table.Put(configKey, cluster.Node{}, err)
	} else {
		changed = v.table.Remove(configKey)
		if v.table.SetConfig(config) {
			changed = true
			v.r.warn(warnings)
		}
	}
	entries, err := v.r.list(nodesDir)
	if err != nil {
		return false, err
	}
	names := namesOf(entries)
	present := map[string]bool{configKey: true}
	before := v.seen
	v.seen = make(map[string]stamp, len(names))
	for _, name := range names {
		present[name] = true
		is, err := stampOf(v.r.path(name))
		if err == nil && before[name] == is && !changed {
			v.seen[name] = is
			continue
		}
		if v.readNode(name) {
			changed = true
		}
	}
	return v.table.Keep(present) || changed, nil
}

// readNode reads a record and reports whether it has changed. It takes the stamp first, so that a
// change during the reading is noticed.
func (v *view) readNode(name string) bool {
	is, err := stampOf(v.r.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		delete(v.seen, name)
		return v.table.Remove(name)
	}
	v.seen[name] = is
	rec := v.r.read(name)
	if errors.Is(rec.err, fs.ErrNotExist) {
		delete(v.seen, name)
		return v.table.Remove(name)
	}
	if unread(rec.err) != nil {
		delete(v.seen, name) // the next comparison reads it again
		if v.table.Has(name) {
			return false // its last state is better than none
		}
	}
	if rec.err == nil {
		rec.err = rec.node.CheckIn(v.table.Config())
	}
	return v.table.Put(name, rec.node, rec.err)
}

// unfinished reports whether a file that was just created is still being written, so that another
// event follows. For a file that was linked to its name, and for one that is not regular, none does.
func unfinished(path string) bool {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		return false
	}
	b, err := smallfile.Read(path, max(maxConfig, maxRecord))
	return err != nil || !json.Valid(b)
}

func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return stamp{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return stamp{inode: st.Ino, size: uint64(st.Size), mtime: time.Unix(st.Mtim.Unix())}, nil
}
