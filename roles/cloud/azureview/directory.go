package azureview

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// mode makes the files readable for all users, as azure's are: tools that do not run as
// root read them, and `kubectl get pods -o wide` and `ip address` show the same facts.
const mode = 0o644

// ownKey is the name of our part of a file, beside azure's component. It is in the last
// tailSize bytes.
const (
	ownKey   = "cnibox"
	tailSize = 8 << 10
)

// directory is an open directory that only root and this process's user can write.
type directory struct {
	f    *os.File
	path string
}

// openDir opens a directory. A symbolic link in its path is an error.
func openDir(path string) (*directory, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &how)
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("open directory %q: a symbolic link is in its path: name what that leads to in stateDir", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", path, err)
	}
	d := &directory{f: os.NewFile(uintptr(fd), path), path: path}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("stat %q: %w", path, err), d.f.Close())
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("directory %q: user %d owns it, mode %04o: others than root could put files there", path, st.Uid, st.Mode&0o7777), d.f.Close())
	}
	return d, nil
}

func (d *directory) close() { d.f.Close() }

// revision is the revision of the store that a file shows, zero if it is unknown.
func (d *directory) revision(f File) store.Revision {
	file, err := d.open(string(f))
	if err != nil {
		return store.Revision{}
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		return store.Revision{}
	}
	tail := make([]byte, min(fi.Size(), tailSize))
	if _, err := file.ReadAt(tail, fi.Size()-int64(len(tail))); err != nil {
		return store.Revision{}
	}
	return parseRevision(tail)
}

// open opens a regular file for reading. It follows no link, and does not wait for a FIFO.
func (d *directory) open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(d.f.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// behind are the files that do not show all that this process knows of the store.
func (d *directory) behind(h *roles.Host, files []File) []File {
	seen, ok := h.Store.Seen()
	if !ok {
		return files
	}
	return slices.DeleteFunc(files, func(f File) bool { return d.revision(f).Covers(seen) })
}

// parseRevision reads the end of a file.
func parseRevision(tail []byte) store.Revision {
	at := bytes.LastIndex(tail, []byte("\n\t\""+ownKey+"\": {"))
	own, whole := bytes.CutSuffix(tail, []byte("\n}"))
	if at < 0 || !whole {
		return store.Revision{}
	}
	_, own, _ = bytes.Cut(own[at:], []byte(": "))
	var r store.Revision
	if coldjson.Unmarshal(own, &r) != nil {
		return store.Revision{}
	}
	return r
}

// replace replaces a file atomically, and durably once sync was called. It writes to one
// temporary name, since there is one writer.
func (d *directory) replace(f File, content []byte) error {
	at, temp := int(d.f.Fd()), "."+string(f)+".new"
	err := d.fill(at, temp, content)
	if err == nil {
		err = unix.Renameat(at, temp, at, string(f))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %q: %w", filepath.Join(d.path, string(f)), err), remove(at, temp))
	}
	return nil
}

// sync makes replaced files durable.
func (d *directory) sync() error {
	if err := unix.Fsync(int(d.f.Fd())); err != nil {
		return fmt.Errorf("sync %q: %w", d.path, err)
	}
	return nil
}

// fill makes a new file.
func (d *directory) fill(at int, name string, content []byte) error {
	if err := remove(at, name); err != nil { // of a writer that was killed
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	_, err = file.Write(content)
	if err == nil {
		err = file.Chmod(mode) // whatever the umask is
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func remove(at int, name string) error {
	if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
