package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// bbolt keeps two meta pages at the beginning of the file (its
// internal/common/meta.go). After a page header of 16 bytes follow magic, version,
// page size, flags, root page, root sequence, freelist page, high water mark,
// transaction number and the FNV-1a sum of these fields, in the machine's byte
// order.
const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	pageHeader  = 16
	metaTxid    = 48
	metaSummed  = 56
	metaSize    = metaSummed + 8
)

// damaged names the file in an error, and what to do when the file is damaged.
func (f *File) damaged(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kv.ErrDamaged):
		return fmt.Errorf("open %q: %w (%s)", f.Path, err, f.Hint)
	}
	return fmt.Errorf("open %q: %w", f.Path, err)
}

type metaPage struct {
	pageSize                        int64
	root, freelist, highWater, txid uint64
	// sum covers these fields and the rest of the page.
	sum  uint64
	seal seal
}

// checkMeta checks, before bbolt maps the file, that the meta page that bbolt will use
// points into the file.
func (f *File) checkMeta(o *opened) (metaPage, error) {
	newest, valid, err := o.newestMeta()
	if errors.Is(err, io.EOF) {
		return newest, fmt.Errorf("%w: cut short at %d bytes", kv.ErrDamaged, o.at.Size)
	}
	if err != nil {
		return newest, err
	}
	// A power cut may leave half of the newest meta page; the other one is the state
	// before it. A process cannot, so in a file that ends with the boot both are valid.
	if valid == 0 || valid == 1 && !f.Durable {
		return newest, fmt.Errorf("%w: %d valid meta pages", kv.ErrDamaged, valid)
	}
	return newest, newest.check(o.at.Size)
}

// newestMeta reads the meta page that bbolt uses, and says how many are valid.
func (o *opened) newestMeta() (newest metaPage, valid int, err error) {
	b, err := o.read(0, metaEnd())
	if err != nil {
		return newest, 0, err
	}
	return newestMeta(b)
}

// metaEnd returns the length of what newestMeta needs of a file.
func metaEnd() int64 { return int64(os.Getpagesize()) + sealAt + sealSize }

// newestMeta returns the meta page that bbolt uses of a file, and says how many are valid.
func newestMeta(file []byte) (newest metaPage, valid int, err error) {
	for i := range 2 {
		m, ok, err := parseMeta(file, i)
		if err != nil {
			return newest, 0, err
		}
		if ok && (valid == 0 || m.txid > newest.txid) {
			newest = m
		}
		if ok {
			valid++
		}
	}
	return newest, valid, nil
}

// parseMeta returns one meta page of a file.
func parseMeta(file []byte, i int) (m metaPage, valid bool, err error) {
	page, e := os.Getpagesize(), binary.NativeEndian
	b := file[i*page+pageHeader:]
	if e.Uint32(b) != metaMagic || e.Uint32(b[4:]) != metaVersion || e.Uint64(b[metaSummed:]) != metaSum(b) {
		return m, false, nil
	}
	m = metaPage{
		pageSize:  int64(e.Uint32(b[8:])),
		root:      e.Uint64(b[16:]),
		freelist:  e.Uint64(b[32:]),
		highWater: e.Uint64(b[40:]),
		txid:      e.Uint64(b[metaTxid:]),
		sum:       e.Uint64(b[metaSummed:]),
		seal:      parseSeal(b[sealAt-pageHeader:]),
	}
	if m.txid%2 != uint64(i) { // transactions use the two pages in turn
		return m, false, nil
	}
	if m.pageSize != int64(page) {
		return m, false, fmt.Errorf("%w: pages of %d bytes, this machine has %d", kv.ErrDamaged, m.pageSize, page)
	}
	return m, true, nil
}

// check refuses a meta page that points outside the file. bbolt writes every page
// below the high water mark before the meta page.
func (m *metaPage) check(size int64) error {
	switch {
	case m.highWater > uint64(size/m.pageSize):
		return fmt.Errorf("%w: cut short at %d bytes, %d pages of %d expected", kv.ErrDamaged, size, m.highWater, m.pageSize)
	case m.root < 2 || m.root >= m.highWater:
		return fmt.Errorf("%w: root page %d of %d", kv.ErrDamaged, m.root, m.highWater)
	case m.freelist < 2 || m.freelist >= m.highWater:
		return fmt.Errorf("%w: freelist page %d of %d", kv.ErrDamaged, m.freelist, m.highWater)
	}
	return nil
}

// metaSum returns the sum of a meta page's fields.
func metaSum(b []byte) uint64 {
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSummed])
	return sum.Sum64()
}
