package boltfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// opened is an open file. During a transaction it is locked.
type opened struct {
	file *os.File
	// at is the file's status when it was last locked.
	at unix.Stat_t
	// holder is the open side file, nil before the first note in it.
	holder *os.File
	// readOnly: the file could not be opened for writing.
	readOnly bool
	// db is nil before the first transaction. It shares file and closes it.
	db *bolt.DB
	// meta is the meta page of the state that db and cache stand for.
	meta  metaPage
	cache *Cache
	// free are the free pages of transaction freeOf. buf is the memory of read.
	free   []uint64
	freeOf uint64
	buf    []byte
}

// Idle keeps a file open and mapped, but unlocked, between two transactions of one
// process. Opening it anew, directory by directory with their owners checked,
// costs a tenth of a transaction; mapping it and reading its free pages costs a
// third. The next transaction checks under the lock whether another process wrote.
type Idle struct {
	mu sync.Mutex
	// open is nil while a transaction uses the file. Another goroutine opens the
	// file for itself then, so that goroutines exclude each other as processes do.
	open *opened
	// frozen is the copy that reads use, or nil; see File.Freeze.
	frozen *opened
}

// Freeze makes the reads of this process use a copy of the file, without its lock, until thaw is called. Check reads the file itself.
// Without a file it does nothing.
func (f *File) Freeze(ctx context.Context) (thaw func(), err error) {
	o, err := f.open(ctx, false)
	if err != nil || o == nil {
		return func() {}, err
	}
	fd, err := unix.MemfdCreate(f.Name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy %q: %w", f.Path, err), o.close())
	}
	s := &session{opened: &opened{file: os.NewFile(uintptr(fd), f.Path), readOnly: true, cache: &Cache{}}}
	_, err = io.Copy(s.file, io.NewSectionReader(o.file, 0, o.at.Size))
	err = errors.Join(err, f.release(o))
	if err == nil {
		err = s.openDB(f)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy %q: %w", f.Path, err), s.close())
	}
	f.Idle.setFrozen(s.opened)
	return func() {
		f.Idle.setFrozen(nil)
		_ = s.close()
	}, nil
}

func (i *Idle) setFrozen(o *opened) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frozen = o
}

// copied returns the copy for reads, or nil. A damaged copy is closed.
func (i *Idle) copied() *opened {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.frozen != nil && i.frozen.db == nil {
		return nil
	}
	return i.frozen
}

// Seen returns the Info and the number of the last transaction of the file as this
// process saw it last, without reading the file. It is false while that is not
// known.
func (i *Idle) Seen() (info Info, number uint64, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	o := i.open
	if o == nil || o.cache == nil || o.cache.info == nil {
		return Info{}, 0, false
	}
	info, err := o.cache.Info(nil)
	return info, o.meta.txid, err == nil
}

// take returns the open file, or nil when there is none.
func (i *Idle) take() *opened {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	o := i.open
	i.open = nil
	return o
}

// release ends a successful transaction: it gives the lock back and keeps the file
// open for the next transaction. A file that cannot be kept is closed.
func (f *File) release(o *opened) error {
	if f.Idle == nil || o.readOnly {
		return o.close()
	}
	if err := unix.Flock(int(o.file.Fd()), unix.LOCK_UN); err != nil {
		return o.close() // this gives the lock back as well
	}
	f.Idle.mu.Lock()
	defer f.Idle.mu.Unlock()
	if f.Idle.open != nil {
		return o.close()
	}
	f.Idle.open = o
	return nil
}

// refresh drops what is known of the file's content if another process has changed
// it. Each change writes a new meta page. The lock stays.
func (o *opened) refresh(meta metaPage) error {
	if o.meta == meta {
		return nil
	}
	o.meta, o.free, o.cache = meta, nil, &Cache{Kept: o.cache.Kept}
	return o.unmap()
}

// unmap ends bbolt's use of the file. The file stays open, and locked if it was.
// bbolt unlocks a file when it closes it. So the file gets another descriptor and
// its old one is closed before bbolt closes: bbolt then finds it closed and does not
// unlock.
func (o *opened) unmap() error {
	if o.db == nil {
		return nil
	}
	fd, err := unix.FcntlInt(o.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", o.file.Name(), err)
	}
	locked := os.NewFile(uintptr(fd), o.file.Name())
	_ = o.file.Close()
	_ = o.db.Close()
	o.file, o.db = locked, nil
	return nil
}

// close closes everything and so gives the lock back.
func (o *opened) close() error {
	var err error
	if o.db != nil {
		err = o.db.Close()
	}
	return errors.Join(err, o.closeFiles())
}

// closeFiles closes the descriptors. The mapping of a bbolt that cannot be closed
// stays.
func (o *opened) closeFiles() error {
	var err error
	if o.file != nil {
		err = o.file.Close()
	}
	if errors.Is(err, os.ErrClosed) {
		err = nil // bbolt closed it, also when it failed to open it
	}
	if o.holder != nil {
		_ = o.holder.Close() // an error does not matter: the note is for people only
	}
	*o = opened{}
	return err
}
