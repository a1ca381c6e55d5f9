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

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
)

// collection is the files of a directory in the registry. The version of a text is its hash.
type collection struct {
	r    *Registry
	name string
}

// Collection returns the texts in "<name>/".
func (r *Registry) Collection(name string) cluster.Collection { return collection{r, name} }

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

// List calls each with every text. It reads the names under the lock: on some file systems a list lacks a file that is
// being replaced. A file that has another type, is too large or has no permission to be read stops
// no other one. Other errors, such as those of a network file system, may pass, so they end the list.
func (l collection) List(ctx context.Context, each func(name string, text []byte, version string)) error {
	if err := l.r.mounted(); err != nil {
		return fmt.Errorf("open cluster directory: %w: %w: mount it", cluster.ErrUnavailable, err)
	}
	unlock, err := l.r.lock(ctx)
	if err != nil {
		return err
	}
	entries, err := l.r.list(l.name)
	l.r.tidy(l.name, entries)
	unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		name, ok := nameOf(e.Name())
		if !ok || cluster.CheckName(name) != nil {
			continue
		}
		text, version, err := l.Read(ctx, name)
		switch {
		case !e.Type().IsRegular() || errors.Is(err, smallfile.ErrTooLarge) || errors.Is(err, fs.ErrPermission):
			each(name, nil, "")
		case err != nil:
			return err
		case version != "":
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
	if errors.Is(err, smallfile.ErrTooLarge) {
		return nil, "", fmt.Errorf("%w: %w: restore or delete the file", cluster.ErrInvalid, err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w: %w", l.name, cluster.ErrUnavailable, err)
	}
	return text, hash(text), nil
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
