package boltfile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const (
	// compactSize is the size from which a file is compacted: smaller ones do not
	// matter.
	compactSize = 4 << 20
	// compactShare: a file is compacted when less than one page in compactShare is used.
	compactShare = 4
)

// isSparse reports whether most pages of the file are free. bbolt never makes a file
// smaller.
func (o *opened) isSparse() bool {
	if o.at.Size < compactSize {
		return false
	}
	free, err := o.freePages(&o.meta)
	return err == nil && (o.meta.highWater-uint64(len(free)))*compactShare < uint64(o.at.Size/o.meta.pageSize)
}

// compact replaces the file by one without free pages, unless another process uses
// it now: the next large transaction leads here again. The copy is completed under
// another name and renamed while the file is locked; processes that have the old file
// open notice that at their next transaction.
func (f *File) compact(ctx context.Context) error {
	w := f.Locks.begin(ctx)
	w.never = true
	dir, err := f.lockDir(w)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	o, err := f.openLocked(w, true)
	if err != nil || o == nil {
		return err
	}
	defer o.close() //nolint:errcheck // nothing was written
	if err := f.check(o); err != nil || !o.isSparse() {
		return err
	}
	at, temp := int(dir.Fd()), f.Name+".new"
	err = unlinkat(at, temp)
	if err == nil {
		err = f.guard(o, false, func(*bolt.Tx) error { return f.copyTo(o, at, temp) })
	}
	if err == nil {
		err = unix.Renameat(at, temp, at, f.Name)
	}
	if err == nil && f.Durable {
		err = unix.Fsync(at)
	}
	if err != nil {
		return fmt.Errorf("compact %q: %w", f.Path, errors.Join(err, unlinkat(at, temp)))
	}
	return nil
}

// copyTo writes what the open file contains to a new file.
func (f *File) copyTo(o *opened, at int, temp string) error {
	fd, err := openat(at, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := &session{opened: &opened{file: os.NewFile(uintptr(fd), filepath.Join(filepath.Dir(f.Path), temp))}}
	err = to.openDB(f)
	if err == nil {
		err = bolt.Compact(to.db, o.db, 0)
	}
	if err == nil {
		err = to.continueFrom(o.meta.txid)
	}
	if err == nil && f.Durable {
		err = to.file.Sync()
	}
	return errors.Join(err, to.close())
}

// continueFrom gives the newest state of a file the numbers txid and txid+1, on both
// meta pages, because a file's revision must not go back.
func (o *opened) continueFrom(txid uint64) error {
	m, valid, err := o.newestMeta()
	if err != nil || valid == 0 {
		return errors.Join(err, errors.New("no valid meta page"))
	}
	body := make([]byte, metaSize)
	if _, err := o.file.ReadAt(body, int64(m.txid%2)*m.pageSize+pageHeader); err != nil {
		return err
	}
	for _, number := range []uint64{txid, txid + 1} {
		binary.NativeEndian.PutUint64(body[metaTxid:], number)
		binary.NativeEndian.PutUint64(body[metaSummed:], metaSum(body))
		if _, err := o.file.WriteAt(body, int64(number%2)*m.pageSize+pageHeader); err != nil {
			return err
		}
	}
	return nil
}
