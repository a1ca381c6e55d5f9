package boltfile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// Entry is one entry of a bucket in a damaged file.
type Entry struct {
	// Buckets are the names from the outermost bucket inwards.
	Buckets    []string
	Key, Value []byte
}

// Mend replaces the file by a new one, which fill makes of what can still be read of the
// old one, and returns the old one's new path. After an error, or a crash, an old regular file
// is still in place. It does not use bbolt to read, which neither checks what it reads
// nor ends when pages lead in a circle. The entries may be damaged themselves.
func (f *File) Mend(ctx context.Context, fill func(*bolt.Tx, []Entry) error) (aside string, err error) {
	w := f.Locks.begin(ctx)
	dir, err := f.lockDir(w)
	if err != nil {
		return "", fmt.Errorf("mend %q: %w", f.Path, err)
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	at, temp := int(dir.Fd()), f.Name+".new"
	rename := func(name string) error { return unix.Linkat(at, f.Name, at, name, 0) }
	var entries []Entry
	o, err := f.openLocked(w, true)
	switch {
	case err == nil && o == nil:
		return "", fmt.Errorf("mend %q: %w", f.Path, kv.ErrNotFound)
	case err == nil:
		defer o.close() //nolint:errcheck // nothing was written
		b := make([]byte, o.at.Size)
		if _, err := o.file.ReadAt(b, 0); err != nil {
			return "", fmt.Errorf("read the damaged file: %w", err)
		}
		entries = salvaged(b)
	case errors.Is(err, kv.ErrDamaged): // not a regular file: it has no entries, and a directory cannot have a second name
		rename = func(name string) error { return unix.Renameat2(at, f.Name, at, name, unix.RENAME_NOREPLACE) }
	default:
		return "", fmt.Errorf("mend %q: %w", f.Path, err)
	}
	g := *f
	g.Fresh = func(_ context.Context, tx *bolt.Tx) error { return fill(tx, entries) }
	if err = unlinkat(at, temp); err == nil {
		err = g.fill(ctx, at, temp)
	}
	if err == nil {
		aside, err = f.aside(dir, rename)
	}
	if err == nil {
		err = unix.Renameat(at, temp, at, f.Name)
	}
	if err == nil && f.Durable {
		err = unix.Fsync(at)
	}
	if err != nil {
		return "", fmt.Errorf("mend %q: %w", f.Path, errors.Join(err, unlinkat(at, temp)))
	}
	return aside, nil
}

// salvaged returns the entries of a damaged file.
func salvaged(b []byte) []Entry {
	if int64(len(b)) < metaEnd() {
		return nil
	}
	newest, valid, err := newestMeta(b)
	if err != nil || valid == 0 {
		return nil // nothing says where its pages are
	}
	s := &salvage{file: b, size: uint64(newest.pageSize), seen: map[uint64]bool{0: true, 1: true}}
	s.page(newest.root, nil)
	return s.entries
}

// salvage reads the pages of a damaged file, each once. Their layout is that of bbolt's
// internal/common/page.go.
type salvage struct {
	file    []byte
	size    uint64
	seen    map[uint64]bool
	entries []Entry
}

func (s *salvage) page(id uint64, in []string) {
	if s.seen[id] || id >= uint64(len(s.file))/s.size {
		return
	}
	s.seen[id] = true
	s.elements(s.file[id*s.size:], in)
}

// elements reads the elements of a page, which is at the beginning of b.
func (s *salvage) elements(b []byte, in []string) {
	const branch, leaf, element, bucket, bucketHeader = 1, 2, 16, 1, 16
	if len(b) < pageHeader {
		return
	}
	e := binary.NativeEndian
	kind, count := e.Uint16(b[8:]), int(e.Uint16(b[10:]))
	for i := range count {
		at := pageHeader + i*element
		if at+element > len(b) {
			return
		}
		el := b[at:]
		if kind == branch {
			s.page(e.Uint64(el[8:]), in)
			continue
		}
		pos, k, v := uint64(e.Uint32(el[4:])), uint64(e.Uint32(el[8:])), uint64(e.Uint32(el[12:]))
		if kind != leaf || pos+k+v > uint64(len(el)) {
			continue
		}
		key, value := el[pos:pos+k], el[pos+k:pos+k+v]
		if e.Uint32(el) != bucket {
			s.entries = append(s.entries, Entry{in, key, value})
			continue
		}
		inner := append(in[:len(in):len(in)], string(key))
		switch {
		case len(value) < bucketHeader || len(inner) > 2:
		case e.Uint64(value) == 0: // the bucket's only page follows its header
			s.elements(value[bucketHeader:], inner)
		default:
			s.page(e.Uint64(value), inner)
		}
	}
}
