package boltfile

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// bbolt has a checksum of its meta pages only: a leaf page whose element count became 0
// is a valid one, and the leases in it are gone. So each commit seals the file: behind
// the fields of the new meta page, where bbolt writes zeros, it writes the transaction's
// number, a sum of all used pages, and the time that it then gives the file as its
// modification time. A file with that time was written to by nobody else, and its
// pages need not be summed up again: with 150 pages that would take 0.1 ms of each
// call.
//
// A commit writes only pages that were free before it. So the sum changes by those of
// the pages that the commit freed and took. A process that is killed before it sealed
// its commit leaves zeros. Such a file is used: the pages of the commit before can be
// overwritten already.
const (
	sealAt   = pageHeader + metaSize
	sealSize = 24
)

// seal is what the file says about one transaction. The zero value is no seal.
type seal struct {
	txid, sum uint64
	// stamp is the file's modification time, in nanoseconds since 1970.
	stamp int64
}

func parseSeal(b []byte) seal {
	e := binary.NativeEndian
	return seal{e.Uint64(b), e.Uint64(b[8:]), int64(e.Uint64(b[16:]))}
}

// errSum means that a page is not as it was written.
var errSum = fmt.Errorf("%w: its pages are not as they were written", kv.ErrDamaged)

// verify compares the file's pages with its seal, unless its modification time says
// that only this program wrote to it. A file without a seal gets one.
func (f *File) verify(o *opened) error {
	m := &o.meta
	if m.seal.txid == m.txid && m.seal.stamp == o.at.Mtim.Nano() && !f.Whole {
		return nil
	}
	sum, err := o.sum(m)
	switch {
	case err != nil:
	case m.seal.txid == m.txid && m.seal.sum == sum:
	case m.seal != (seal{}):
		err = errSum
	}
	if err != nil {
		return f.damaged(err)
	}
	if !o.readOnly {
		o.writeSeal(sum)
	}
	return nil
}

// committed reads the meta page of a transaction that was just committed, and seals it.
// An error does not matter: the next transaction finds no seal, or reports the error.
func (o *opened) committed() {
	before := o.meta
	after, valid, err := o.newestMeta()
	if err != nil || valid == 0 {
		return
	}
	o.meta = after
	sum, err := o.sumAfter(&before, &after)
	if err == nil {
		o.writeSeal(sum)
	}
}

// sumAfter returns the sum of a transaction's pages from that of the one before it.
func (o *opened) sumAfter(before, after *metaPage) (uint64, error) {
	if before.seal == (seal{}) || before.seal.txid != before.txid || after.txid != before.txid+1 {
		return o.sum(after)
	}
	was, err := o.freePages(before)
	if err != nil {
		return 0, err
	}
	is, err := o.freePages(after)
	if err != nil {
		return 0, err
	}
	o.free, o.freeOf = is, after.txid
	freed, taken := difference(was, before.highWater, is, after.highWater)
	less, err := o.sumPages(after, freed)
	if err != nil {
		return 0, err
	}
	more, err := o.sumPages(after, taken)
	return before.seal.sum - less + more, err
}

// difference returns the pages that a transaction freed and took.
func difference(was []uint64, wasEnd uint64, is []uint64, isEnd uint64) (freed, taken []uint64) {
	for id := wasEnd; id < isEnd; id++ {
		was = append(was[:len(was):len(was)], id) // it was not used either
	}
	for len(was)+len(is) > 0 {
		switch {
		case len(was) == 0 || len(is) > 0 && is[0] < was[0]:
			freed, is = append(freed, is[0]), is[1:]
		case len(is) == 0 || was[0] < is[0]:
			taken, was = append(taken, was[0]), was[1:]
		default:
			was, is = was[1:], is[1:]
		}
	}
	return freed, taken
}

// sum returns the sum of the pages that a transaction uses: those below its high water
// mark that are neither meta pages nor free.
func (o *opened) sum(m *metaPage) (uint64, error) {
	free, err := o.freePages(m)
	if err != nil {
		return 0, err
	}
	used := make([]uint64, 0, m.highWater)
	for id := uint64(2); id < m.highWater; id++ {
		if len(free) > 0 && free[0] == id {
			free = free[1:]
			continue
		}
		used = append(used, id)
	}
	return o.sumPages(m, used)
}

// writeSeal seals the transaction of o.meta.
func (o *opened) writeSeal(sum uint64) {
	s := seal{o.meta.txid, sum, time.Now().UnixNano()}
	e := binary.NativeEndian
	b := e.AppendUint64(e.AppendUint64(e.AppendUint64(make([]byte, 0, sealSize), s.txid), s.sum), uint64(s.stamp))
	fd := int(o.file.Fd())
	if _, err := unix.Pwrite(fd, b, int64(o.meta.txid%2)*o.meta.pageSize+sealAt); err != nil {
		return
	}
	o.meta.seal = s
	at := unix.NsecToTimespec(s.stamp)
	_ = unix.UtimesNanoAt(fd, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, at}, unix.AT_EMPTY_PATH)
}

// freePages returns the free pages of a transaction, in order. The page that lists them
// begins with its number, its kind and their count; a count that does not fit is the
// first number (bbolt's internal/common/page.go).
func (o *opened) freePages(m *metaPage) ([]uint64, error) {
	if o.freeOf == m.txid && o.free != nil {
		return o.free, nil
	}
	const kindAt, countAt, kind, tooMany = 8, 10, 0x10, 0xFFFF
	at, size := int64(m.freelist)*m.pageSize, m.pageSize
	for {
		buf, err := o.read(at, size)
		if err != nil {
			return nil, err
		}
		e := binary.NativeEndian
		count, start := uint64(e.Uint16(buf[countAt:])), uint64(pageHeader)
		if count == tooMany {
			count, start = e.Uint64(buf[pageHeader:]), pageHeader+8
		}
		if e.Uint16(buf[kindAt:]) != kind || count > m.highWater {
			return nil, fmt.Errorf("%w: page %d does not list %d free pages", kv.ErrDamaged, m.freelist, count)
		}
		if end := int64(start + 8*count); end > int64(len(buf)) {
			size = end
			continue
		}
		free := make([]uint64, count)
		last := uint64(1) // a meta page
		for i := range free {
			free[i] = e.Uint64(buf[start+8*uint64(i):])
			if free[i] <= last || free[i] >= m.highWater {
				return nil, fmt.Errorf("%w: free page %d of %d", kv.ErrDamaged, free[i], m.highWater)
			}
			last = free[i]
		}
		return free, nil
	}
}

// sumPages returns the sum of some pages. It reads neighbours together.
func (o *opened) sumPages(m *metaPage, ids []uint64) (sum uint64, err error) {
	const together = 16
	for len(ids) > 0 {
		n := 1
		for n < together && n < len(ids) && ids[n] == ids[0]+uint64(n) {
			n++
		}
		buf, err := o.read(int64(ids[0])*m.pageSize, int64(n)*m.pageSize)
		if err != nil {
			return 0, err
		}
		for i := range n {
			page := buf[int64(i)*m.pageSize:][:m.pageSize]
			sum += pageSum(ids[i], page)
		}
		ids = ids[n:]
	}
	return sum, nil
}

// read returns bytes of the file, which are valid until the next call. It does not use
// bbolt's mapping, in which a file that is cut short faults.
func (o *opened) read(at, n int64) ([]byte, error) {
	if int64(len(o.buf)) < n {
		o.buf = make([]byte, max(n, 4*int64(os.Getpagesize()))) // most commits read fewer pages at once
	}
	if _, err := o.file.ReadAt(o.buf[:n], at); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", n, at, err)
	}
	return o.buf[:n], nil
}

// pageSum returns a sum of a page and its number, for accidental damage. Each step is
// reversible, so a page with one other word has another sum. The tables of hash/crc32
// take 0.3 ms to make, in each process.
func pageSum(id uint64, page []byte) uint64 {
	sum := id
	for ; len(page) >= 8; page = page[8:] {
		sum = (sum ^ binary.NativeEndian.Uint64(page)) * 0x9e3779b97f4a7c15
		sum ^= sum >> 32
	}
	return mix(sum)
}

// mix spreads a number over 64 bits, so that the sum of two does not depend on each
// alone (the last step of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
