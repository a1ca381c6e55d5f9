package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/metrics"
)

// The file calls, beside node.db, counts the calls of this boot in slots of a fixed size. It is not a
// bucket of node.db, because a transaction costs ten times as much, and other calls would wait for it.
const (
	callsName = "calls"
	// A slot has the role, the verb, the code, the buckets of the histogram and the sum of the durations
	// in nanoseconds, in little-endian order.
	slotSize = 128
	roleSize = 24
	verbSize = 6
	firstAt  = roleSize + verbSize + 2
	sumAt    = slotSize - 8
	maxSlots = 256
)

// Calls counts the calls of one role and verb with one result.
type Calls struct {
	Role, Verb string
	// Code is that of the CNI error, 0 for success.
	Code uint16
	metrics.Histogram
}

// CountCall counts a call and its duration. If no ADD has made the directory of this boot, or too many
// different calls were counted, it counts nothing and returns nil.
func (s *Store) CountCall(ctx context.Context, role, verb string, code uint16, took time.Duration) error {
	if len(role) > roleSize || len(verb) > verbSize {
		return fmt.Errorf("count call: %w: role %.40q, verb %.40q", ErrInvalid, role, verb)
	}
	var head [firstAt]byte
	copy(head[:], role)
	copy(head[roleSize:], verb)
	binary.LittleEndian.PutUint16(head[roleSize+verbSize:], code)
	return s.withCalls(ctx, func(fd int) error {
		slot := make([]byte, 0, slotSize)
		at, err := eachSlot(fd, func(have []byte) bool {
			if bytes.Equal(have[:firstAt], head[:]) {
				slot = append(slot, have...)
			}
			return len(slot) == 0
		})
		if err != nil || at == maxSlots*slotSize {
			return err
		}
		if len(slot) == 0 {
			slot = append(slot, head[:]...)
		}
		slot = slot[:slotSize]
		h := decodeCalls(slot).Histogram
		h.Observe(took)
		for i, n := range h.Buckets {
			binary.LittleEndian.PutUint64(slot[firstAt+8*i:], n)
		}
		binary.LittleEndian.PutUint64(slot[sumAt:], uint64(h.Sum))
		_, err = unix.Pwrite(fd, slot, at)
		return err
	})
}

// Calls returns what CountCall counted in this boot, in no order.
func (s *Store) Calls(ctx context.Context) ([]Calls, error) {
	var all []Calls
	err := s.withCalls(ctx, func(fd int) error {
		_, err := eachSlot(fd, func(slot []byte) bool {
			all = append(all, decodeCalls(slot))
			return true
		})
		return err
	})
	return all, err
}

func (s *Store) withCalls(ctx context.Context, fn func(fd int) error) error {
	return ignoreAbsent(s.run.WithPlain(ctx, s.callLocks, callsName, fn))
}

// ignoreAbsent returns nil for an error that means that this boot has no directory yet.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// eachSlot calls fn for each slot, until fn returns false. It returns the offset of the last slot, or
// of the end.
func eachSlot(fd int, fn func(slot []byte) bool) (at int64, err error) {
	var page [4096]byte
	for at < maxSlots*slotSize {
		n, err := unix.Pread(fd, page[:], at)
		if err != nil {
			return at, err
		}
		if n < slotSize {
			return at, nil // the end, or what is left of a file that was cut
		}
		for b := page[:n-n%slotSize]; len(b) > 0; b = b[slotSize:] {
			if !fn(b[:slotSize]) {
				return at, nil
			}
			at += slotSize
		}
	}
	return at, nil
}

// decodeCalls reads a slot. Any bytes are valid.
func decodeCalls(slot []byte) Calls {
	text := func(b []byte) string { return strings.TrimRight(string(b), "\x00") }
	c := Calls{
		Role: text(slot[:roleSize]), Verb: text(slot[roleSize : roleSize+verbSize]),
		Code: binary.LittleEndian.Uint16(slot[roleSize+verbSize:]),
	}
	for i := range c.Buckets {
		c.Buckets[i] = binary.LittleEndian.Uint64(slot[firstAt+8*i:])
	}
	c.Sum = time.Duration(binary.LittleEndian.Uint64(slot[sumAt:]))
	return c
}
