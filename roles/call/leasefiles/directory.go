package leasefiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// The reference plugin's directory <dataDir>/<network> contains a file for every address,
// which has the address as its name and contains the container ID, CR LF and the
// interface's name. It also contains a file last_reserved_ip.<N> for every range set, and
// an empty file lock, which is locked with flock(2) during every access.
const (
	lockFile   = "lock"
	cursorFile = "last_reserved_ip"
	// LockTimeout is the longest wait for a directory's lock, which the reference holds
	// for milliseconds. BriefLockTimeout is for calls that can continue without the lock.
	LockTimeout      = 10 * time.Second
	BriefLockTimeout = 2 * time.Second
	// maxLeaseFile is the largest size of an address file in bytes; the length of
	// container IDs is not limited.
	maxLeaseFile = 16 << 10
	// maxFiles is the largest number of files in a directory: twice the addresses of an
	// IPv4 /12.
	maxFiles = 2 << 20
	// maxSets is the limit of N in last_reserved_ip.<N>.
	maxSets = 256
)

// ErrDirectory means that a reference plugin's data directory cannot be read or
// written; the text names the file.
var ErrDirectory = errors.New("unusable host-local directory")

// directory is an open reference directory. Nothing in it is followed.
type directory struct {
	path string
	f    *os.File
}

// entry is one address file.
type entry struct {
	name        string
	addr        netip.Addr
	containerID string
	// ifName is empty in files of before 2018.
	ifName   string
	modified time.Time
}

// foundFiles is the content of a directory.
type foundFiles struct {
	entries []*entry
	cursors map[int]netip.Addr
	skipped []SkippedFile
}

// isComponent reports whether a network's name is one component of a path, because the
// reference uses it as a directory's name.
func isComponent(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// directoryExists reports whether a pool has a reference directory, and the time at which
// a file was last made or removed in it.
func directoryExists(id store.PoolID) (exists bool, modified time.Time, err error) {
	if !isComponent(id.Network) {
		return false, modified, nil
	}
	fi, err := os.Lstat(directoryPath(id))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENAMETOOLONG) {
		return false, modified, nil
	}
	if err != nil {
		return false, modified, fault(err)
	}
	return true, fi.ModTime(), nil
}

// openDirectory opens a pool's directory. The path of dataDir may contain symbolic links,
// but the directory itself may not be one.
func openDirectory(id store.PoolID) (*directory, error) {
	path := directoryPath(id)
	if !isComponent(id.Network) {
		return nil, fmt.Errorf("%w: %q cannot name a directory", ErrDirectory, id.Network)
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fault(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	return &directory{path: path, f: os.NewFile(uintptr(fd), path)}, nil
}

// makeDirectory is openDirectory, but makes a missing directory, with the reference's
// mode.
func makeDirectory(id store.PoolID) (*directory, error) {
	d, err := openDirectory(id)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if err := os.MkdirAll(directoryPath(id), 0o755); err != nil {
		return nil, fault(err)
	}
	return openDirectory(id)
}

func (d *directory) close() { d.f.Close() }

// create makes a file. If the name exists, the error is fs.ErrExist.
func (d *directory) create(name string, content []byte) error {
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.f.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return d.fault("write", name, err)
	}
	_, err = retry(func() (int, error) { return unix.Write(fd, content) })
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return errors.Join(d.fault("write", name, err), d.remove(name))
	}
	return nil
}

// writeCursor writes the file with a range set's last address.
func (d *directory) writeCursor(set int, a netip.Addr) error {
	name := fmt.Sprintf("%s.%d", cursorFile, set)
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.f.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return d.fault("write", name, err)
	}
	_, err = retry(func() (int, error) { return unix.Write(fd, []byte(a.String())) })
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return d.fault("write", name, err)
	}
	return nil
}

// modified returns the time at which a file was last made or removed in the directory.
func (d *directory) modified() (time.Time, error) {
	fi, err := d.f.Stat()
	if err != nil {
		return time.Time{}, fault(err)
	}
	return fi.ModTime(), nil
}

// fault returns an error that wraps ErrDirectory and err.
func fault(err error) error { return fmt.Errorf("%w: %w", ErrDirectory, err) }

func (d *directory) fault(op, name string, err error) error {
	return fault(&fs.PathError{Op: op, Path: d.path + "/" + name, Err: err})
}

// retry repeats a system call that a signal interrupted.
func retry[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// open opens a regular file of the directory. It returns an error for other files, and
// does not open devices and pipes.
func (d *directory) open(name string, flags int) (*os.File, error) {
	var st unix.Stat_t
	at := int(d.f.Fd())
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNotRegular
	}
	if err != nil && (flags&unix.O_CREAT == 0 || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path+"/"+name)
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, errors.Join(errNotRegular, err)
	}
	return f, nil
}

var errNotRegular = errors.New("not a regular file")

// openLock opens the lock file. It returns nil if there is none and create is false.
func (d *directory) openLock(create bool) (*os.File, error) {
	flags := unix.O_RDONLY
	if create {
		flags |= unix.O_CREAT
	}
	f, err := d.open(lockFile, flags)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, d.fault("open", lockFile, err)
	}
	return f, nil
}

// lock takes the directory's lock as the reference does. The error is store.ErrBusy after
// the timeout or if ctx ends. If there is no lock file and create is false, lock does
// nothing, because no process uses the directory.
func (d *directory) lock(ctx context.Context, create bool, timeout time.Duration) (unlock func(), err error) {
	f, err := d.openLock(create)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, abandoned := make(chan error), make(chan struct{})
	go func() {
		_, err := retry(func() (struct{}, error) { return struct{}{}, unix.Flock(int(f.Fd()), unix.LOCK_EX) })
		select {
		case got <- err:
		case <-abandoned:
			f.Close()
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			f.Close()
			return nil, d.fault("lock", lockFile, err)
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		holder := lockHolder(f)
		close(abandoned)
		return nil, fault(fmt.Errorf("lock %q: %w%s", f.Name(), store.ErrBusy, holder))
	}
}

// Read returns the address files of a pool's directory, and the files that it skips. It reads without the directory's lock. An absent
// directory has no files.
func Read(ctx context.Context, id store.PoolID) (files []File, skipped []SkippedFile, err error) {
	if !isComponent(id.Network) {
		return nil, nil, nil // the reference host-local cannot have this directory
	}
	d, err := openDirectory(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer d.close()
	found, err := d.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range found.entries {
		files = append(files, File{Address: e.addr, ContainerID: e.containerID, IfName: e.ifName})
	}
	return files, found.skipped, nil
}

// read reads every file of the directory.
func (d *directory) read(ctx context.Context) (*foundFiles, error) {
	found := &foundFiles{cursors: map[int]netip.Addr{}}
	count := 0
	for {
		names, err := d.f.Readdirnames(1024)
		slices.Sort(names)
		for _, n := range names {
			d.readFile(n, found)
		}
		count += len(names)
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, fault(err)
		case count > maxFiles:
			return nil, fmt.Errorf("%w: %q holds more than %d files", ErrDirectory, d.path, maxFiles)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

func (d *directory) readFile(name string, found *foundFiles) {
	if name == lockFile {
		return
	}
	skip := func(err error) {
		found.skipped = append(found.skipped, SkippedFile{strings.Trim(strconv.Quote(name), `"`), err.Error()})
	}
	content, modified, err := d.content(name)
	if err != nil {
		skip(err)
		return
	}
	if set, ok := parseCursorName(name); ok {
		addr, err := roles.ParseAddr(strings.TrimSpace(string(content)))
		if err != nil {
			skip(err)
			return
		}
		found.cursors[set] = addr
		return
	}
	f, err := Parse(name, content)
	if err != nil {
		skip(err)
		return
	}
	found.entries = append(found.entries, &entry{name: name, addr: f.Address, containerID: f.ContainerID, ifName: f.IfName, modified: modified})
}

func (d *directory) content(name string) ([]byte, time.Time, error) {
	f, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLeaseFile+1))
	if err == nil && len(b) > maxLeaseFile {
		err = fmt.Errorf("longer than %d bytes", maxLeaseFile)
	}
	return b, fi.ModTime(), err
}

// parseCursorName parses last_reserved_ip.<N>. Before 2017 the name had no N.
func parseCursorName(name string) (set int, ok bool) {
	if name == cursorFile {
		return 0, true
	}
	n, ok := strings.CutPrefix(name, cursorFile+".")
	if !ok {
		return 0, false
	}
	set, err := strconv.Atoi(n)
	return set, err == nil && set >= 0 && set < maxSets && strconv.Itoa(set) == n
}
