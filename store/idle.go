package store

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// idle keeps a file open between two transactions of one process, unlocked: to
// find it anew, directory by directory with their owners checked, costs a tenth
// of a transaction.
type idle struct {
	mu sync.Mutex
	// file is nil while a transaction uses it: another goroutine opens the file
	// for itself, so that they exclude each other as processes do.
	file *os.File
}

// rested takes the file that is kept open; nil when there is none.
func (f *file) rested() *os.File {
	if f.kept {
		return nil
	}
	f.s.idle.mu.Lock()
	defer f.s.idle.mu.Unlock()
	db := f.s.idle.file
	f.s.idle.file = nil
	return db
}

// spare is a second descriptor of an open file, since bbolt closes the one that
// it is given; nil where there is none to be kept. They have one lock.
func (f *file) spare(db *os.File) *os.File {
	if f.kept {
		return nil
	}
	fd, err := unix.FcntlInt(db.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), f.path)
}

// rest keeps a spare for the next transaction. After a failure it may hold the
// lock still, which goes with it.
func (f *file) rest(spare *os.File, err error) {
	if spare == nil {
		return
	}
	if err == nil {
		f.s.idle.mu.Lock()
		defer f.s.idle.mu.Unlock()
		if f.s.idle.file == nil {
			f.s.idle.file = spare
			return
		}
	}
	_ = spare.Close()
}
