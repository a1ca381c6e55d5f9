package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster"
)

// The directories of cluster-wide ranges: a file for each page, and an empty one for each node, until an
// operator or the agent's -uninstall deletes it.
const (
	rangesDir  = "ranges"
	rangeNodes = "range-nodes"
)

// Pages returns the files of the pages.
func (r *Registry) Pages() cluster.Collection { return r.Collection(rangesDir) }

// DeletedPages returns what inotify(7) reports, which is what programs of this machine do.
func (r *Registry) DeletedPages() (names []string) {
	for {
		if r.pages == nil && (collection{r, rangesDir}).make() == nil {
			r.pages, _ = notify(filepath.Join(r.o.Dir, rangesDir))
		}
		if r.pages == nil {
			return names
		}
		events, err := r.pages.pending()
		if len(events) == 0 && err == nil {
			return names
		}
		for _, e := range events {
			if name, ok := nameOf(e.name); ok && e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 {
				names = append(names, name)
			}
			if e.mask&(unix.IN_Q_OVERFLOW|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0 {
				err = errMoved
			}
		}
		if err != nil {
			r.pages.close()
			r.pages = nil
			names = append(names, "")
		}
	}
}

// Join makes the node's file.
func (r *Registry) Join(context.Context) error {
	path, err := collection{r, rangeNodes}.path(r.o.Name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return fmt.Errorf("record node: %w: %w", cluster.ErrUnavailable, err)
	}
	return f.Close()
}

// Gone reports whether the node has no file.
func (r *Registry) Gone(_ context.Context, node string) (bool, error) {
	path, err := collection{r, rangeNodes}.path(node)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read node: %w: %w", cluster.ErrUnavailable, err)
	}
	return false, nil
}

// ForeignRanges returns none: no other program has its ranges here.
func (*Registry) ForeignRanges(context.Context) ([]cluster.ForeignRange, error) { return nil, nil }
