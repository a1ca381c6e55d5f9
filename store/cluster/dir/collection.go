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
	"slices"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
)

// collection is the files of a directory in the registry. The version of a text is its hash.
type collection struct {
	r    *Registry
	name string
}

// Collection returns the texts in "<name>/".
func (r *Registry) Collection(name string) cluster.Watched { return collection{r, name} }

// path returns a file's path and makes its directory.
func (l collection) path(name string) (string, error) {
	if err := cluster.CheckName(name); err != nil {
		return "", err
	}
	return filepath.Join(l.r.o.Dir, l.name, name+suffix), l.make()
}

// make makes the directory.
func (l collection) make() error {
	err := l.r.mounted()
	if err == nil {
		err = os.Mkdir(filepath.Join(l.r.o.Dir, l.name), 0o755)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("open cluster directory: %w: %w", cluster.ErrUnavailable, err)
	}
	return nil
}

// mounted returns an error if there is neither a configuration nor a directory of ranges. The mount point of a file
// system that is not mounted must not look like a registry in which every address is free. See Options.Found.
func (r *Registry) mounted() error {
	_, err := os.Lstat(filepath.Join(r.o.Dir, configFile))
	ranges := filepath.Join(r.o.Dir, rangesDir)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(ranges)
	}
	if r.o.Found == nil {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Mkdir(ranges, 0o755)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	r.found.Do(r.o.Found)
	return nil
}

// names reads the names under the lock: on some file systems a list lacks a file that is being replaced.
func (l collection) names(ctx context.Context) ([]string, error) {
	if err := l.r.mounted(); err != nil {
		return nil, fmt.Errorf("open cluster directory: %w: %w: mount it", cluster.ErrUnavailable, err)
	}
	unlock, err := l.r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := l.r.list(l.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l.r.tidy(l.name, entries)
	return slices.DeleteFunc(namesOf(entries), func(name string) bool { return cluster.CheckName(name) != nil }), nil
}

// List calls each with every text. A file that has another type, is too large or has no permission to be read stops
// no other one. Other errors, such as those of a network file system, may pass, so they end the list.
func (l collection) List(ctx context.Context, each func(name string, text []byte, version string)) error {
	names, err := l.names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		text, version, err := l.Read(ctx, name)
		switch {
		case unread(err) != nil:
			return err
		case err != nil || version != "":
			each(name, text, version)
		}
	}
	return nil
}

// Read reads the file.
func (l collection) Read(_ context.Context, name string) (text []byte, version string, err error) {
	path, err := l.path(name)
	if err != nil {
		return nil, "", err
	}
	text, err = smallfile.ReadOwn(path, cluster.MaxPage)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", l.fault(err)
	}
	return text, hash(text), nil
}

// fault returns the error for a file that cannot be read.
func (l collection) fault(err error) error {
	if errors.Is(err, smallfile.ErrTooLarge) {
		return fmt.Errorf("%w: %w: restore or delete the file", cluster.ErrInvalid, err)
	}
	return fmt.Errorf("read %s: %w: %w", l.name, cluster.ErrUnavailable, err)
}

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Write compares and writes the file under the directory's lock.
func (l collection) Write(ctx context.Context, name string, text []byte, version string) (next string, err error) {
	path, err := l.path(name)
	if err != nil {
		return "", err
	}
	unlock, err := l.r.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	_, now, err := l.Read(ctx, name)
	if err != nil {
		return "", err
	}
	if now != version {
		return "", cluster.ErrRaced
	}
	if text == nil {
		err = os.Remove(path)
	} else {
		err = smallfile.ReplaceSynced(path, text, 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("write %s: %w: %w", l.name, cluster.ErrUnavailable, err)
	}
	return hash(text), nil
}

// Watch follows the files.
func (l collection) Watch(ctx context.Context, to cluster.Follower[cluster.Text]) error {
	w := watch{r: l.r, to: texts{l, to}, dir: l.name, limit: cluster.MaxPage, current: true}
	return w.run(ctx)
}

// texts passes the files of a collection on.
type texts struct {
	collection
	cluster.Follower[cluster.Text]
}

func (t texts) list(ctx context.Context) ([]string, error) { return t.names(ctx) }

func (t texts) Put(f file, listing bool) {
	if cluster.CheckName(f.name) != nil {
		return
	}
	text := cluster.Text{Name: f.name, Text: f.text}
	if f.err != nil {
		text.Text, text.Err = nil, t.fault(f.err)
	} else {
		text.Version = hash(f.text)
	}
	t.Follower.Put(text, listing)
}
