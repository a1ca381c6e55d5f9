package boltfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
)

// Entry is one entry of a bucket in a damaged file.
type Entry struct {
	// Buckets are the names from the outermost bucket inwards.
	Buckets    []string
	Key, Value []byte
}

// Salvage sets the file aside and returns its new path and what can still be read of
// it. It does not use bbolt, which neither checks what it reads nor ends when pages lead
// in a circle. The entries may be damaged themselves.
func (f *File) Salvage(ctx context.Context) (aside string, all []Entry, err error) {
	if aside, err = f.SetAside(ctx); err != nil {
		return "", nil, err
	}
	b, err := os.ReadFile(aside)
	if err != nil {
		return aside, nil, fmt.Errorf("read the damaged file: %w", err)
	}
	newest, valid, err := newestMeta(bytes.NewReader(b))
	if err != nil || valid == 0 {
		return aside, nil, nil // nothing says where its pages are
	}
	s := &salvage{file: b, size: uint64(newest.pageSize), seen: map[uint64]bool{0: true, 1: true}}
	s.page(newest.root, nil)
	return aside, s.entries, nil
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
