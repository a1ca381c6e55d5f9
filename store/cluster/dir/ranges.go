package dir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
)

// The directories of cluster-wide ranges: a file for each page, and an empty one for each node, until an
// operator or the agent's -uninstall deletes it.
const (
	rangePages = "ranges"
	rangeNodes = "range-nodes"
)

// rangePath returns a file's path and makes its directory.
func (r *Registry) rangePath(in, name string) (string, error) {
	if err := cluster.CheckName(name); err != nil {
		return "", err
	}
	path := filepath.Join(r.o.Dir, in)
	err := r.mounted()
	if err == nil {
		err = os.Mkdir(path, 0o755)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("open cluster directory: %w: %w", cluster.ErrUnavailable, err)
	}
	return filepath.Join(path, name+suffix), nil
}

// mounted returns an error if there is no configuration. The mount point of a file system that is not mounted
// must not look like a registry in which every address is free.
func (r *Registry) mounted() error {
	_, err := os.Lstat(filepath.Join(r.o.Dir, configFile))
	return err
}

// Pages calls each with every page. A file that has another type, is too large or has no permission to be read stops
// no other page. Other errors, such as those of a network file system, may pass, so they end the list.
func (r *Registry) Pages(ctx context.Context, each func(name string, page []byte)) error {
	if err := r.mounted(); err != nil {
		return fmt.Errorf("open cluster directory: %w: %w", cluster.ErrUnavailable, err)
	}
	entries, err := os.ReadDir(filepath.Join(r.o.Dir, rangePages))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list ranges: %w: %w", cluster.ErrUnavailable, err)
	}
	for _, e := range entries {
		name, ok := nameOf(e.Name())
		if !ok {
			continue
		}
		page, version, err := r.ReadPage(ctx, name)
		switch {
		case !e.Type().IsRegular() || errors.Is(err, smallfile.ErrTooLarge) || errors.Is(err, fs.ErrPermission):
			each(name, nil)
		case err != nil:
			return err
		case version != "":
			each(name, page)
		}
	}
	return nil
}

// ReadPage returns the hash of the page as the version.
func (r *Registry) ReadPage(_ context.Context, name string) (page []byte, version string, err error) {
	path, err := r.rangePath(rangePages, name)
	if err != nil {
		return nil, "", err
	}
	page, err = smallfile.ReadOwn(path, cluster.MaxPage)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read range: %w: %w", cluster.ErrUnavailable, err)
	}
	sum := sha256.Sum256(page)
	return page, hex.EncodeToString(sum[:]), nil
}

// WritePage compares and writes the page under the directory's lock.
func (r *Registry) WritePage(ctx context.Context, name string, page []byte, version string) error {
	path, err := r.rangePath(rangePages, name)
	if err != nil {
		return err
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, now, err := r.ReadPage(ctx, name)
	if err != nil {
		return err
	}
	if now != version {
		return cluster.ErrRaced
	}
	if err := smallfile.ReplaceSynced(path, page, 0o644); err != nil {
		return fmt.Errorf("write range: %w: %w", cluster.ErrUnavailable, err)
	}
	return nil
}

// Join makes the node's file.
func (r *Registry) Join(context.Context) error {
	path, err := r.rangePath(rangeNodes, r.o.Name)
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
	path, err := r.rangePath(rangeNodes, node)
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
