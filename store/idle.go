package store

import (
	"errors"
	"fmt"
	"os"
	"sync"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// opened is a file that is open and, within a transaction, locked.
type opened struct {
	file *os.File
	// dev and inode are the file's.
	dev, inode uint64
	// holder is the side file, nil before the first note in it.
	holder *os.File
	// readOnly: it could not be opened for writing.
	readOnly bool
	// db is nil before the first transaction. It has the file too, and closes it.
	db *bolt.DB
	// meta is the meta page that db and memo go by.
	meta metaPage
	memo *memo
}

// idle keeps node.db open and mapped between two transactions of one process,
// unlocked. To find it anew, directory by directory with their owners checked,
// costs a tenth of a transaction, and to map it and read its free pages a third.
// Whether another process wrote meanwhile is seen under the lock.
type idle struct {
	mu sync.Mutex
	// open is nil while a transaction uses it: another goroutine opens the file
	// for itself, so that they exclude each other as processes do.
	open *opened
}

// rested takes the file that is kept open; nil when there is none.
func (f *file) rested() *opened {
	if f.kept {
		return nil
	}
	f.s.idle.mu.Lock()
	defer f.s.idle.mu.Unlock()
	o := f.s.idle.open
	f.s.idle.open = nil
	return o
}

// rest ends a successful transaction: it keeps the file for the next one and
// gives the lock back. A file that cannot be kept is closed.
func (f *file) rest(o *opened, wrote bool) error {
	if f.kept || o.readOnly {
		return o.close()
	}
	var err error
	if wrote {
		o.meta, err = o.meta.next(o.file)
	}
	if err == nil {
		err = unix.Flock(int(o.file.Fd()), unix.LOCK_UN)
	}
	if err != nil {
		return o.close() // which gives the lock back as well
	}
	f.s.idle.mu.Lock()
	defer f.s.idle.mu.Unlock()
	if f.s.idle.open != nil {
		return o.close()
	}
	f.s.idle.open = o
	return nil
}

// renew drops what is known of the file's content if another process changed it
// since. Each change has a meta page of its own. The lock stays.
func (o *opened) renew(meta metaPage) error {
	if o.meta == meta {
		return nil
	}
	o.meta, o.memo = meta, o.memo.lasting()
	return o.unmap()
}

// unmap ends bbolt's use of the file, which stays open, and locked if it was: another
// descriptor has it before bbolt closes this one, which it then finds closed already,
// or it would give back the lock as well.
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

// close closes what is open, and so gives the lock back.
func (o *opened) close() error {
	var err error
	if o.db != nil {
		err = o.db.Close()
	}
	return errors.Join(err, o.leave())
}

// leave closes the descriptors, and leaves the mapping of a bbolt that cannot
// be closed.
func (o *opened) leave() error {
	var err error
	if o.file != nil {
		err = o.file.Close()
	}
	if errors.Is(err, os.ErrClosed) {
		err = nil // by bbolt, be it that it could not open it
	}
	if o.holder != nil {
		_ = o.holder.Close() // what is in it is for people
	}
	*o = opened{}
	return err
}
