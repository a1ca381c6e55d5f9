package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
)

// Lock is a held lock on an attachment or a shared object.
type Lock = boltfile.Lock

// sharedDomain is a bit in the byte offsets of shared names, so that they differ from those of
// attachments.
const sharedDomain = 1 << 61

// LockAttachment takes the lock that an ADD or DEL of the attachment holds from
// before its first change until after its last. It waits for at most LockTimeout,
// then fails with ErrBusy.
func (s *Store) LockAttachment(ctx context.Context, k Key) (*Lock, error) {
	l, err := s.byteLocks().Lock(ctx, k.Describe(), hashByte(k.Encode()), true)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", k.Describe(), err)
	}
	return l, nil
}

// TryLockAttachment is LockAttachment without waiting. It returns false while another call works on the
// attachment, which means that a pending record is not dead.
func (s *Store) TryLockAttachment(ctx context.Context, k Key) (*Lock, bool, error) {
	l, ok, err := s.byteLocks().TryLock(ctx, hashByte(k.Encode()), true)
	if err != nil {
		return nil, false, fmt.Errorf("lock %s: %w", k.Describe(), err)
	}
	return l, ok, nil
}

// LockShared locks the name of a shared object, for example a bridge: exclusively to
// create or remove the object, shared to use it. It waits for at most LockTimeout,
// then fails with ErrBusy.
func (s *Store) LockShared(ctx context.Context, name string, exclusive bool) (*Lock, error) {
	l, err := s.byteLocks().Lock(ctx, name, sharedDomain|hashByte([]byte(name)), exclusive)
	if err != nil {
		return nil, fmt.Errorf("lock shared object %q: %w", name, err)
	}
	return l, nil
}

// TryLockShared is LockShared without waiting. It returns false if the lock is held.
func (s *Store) TryLockShared(ctx context.Context, name string, exclusive bool) (*Lock, bool, error) {
	l, ok, err := s.byteLocks().TryLock(ctx, sharedDomain|hashByte([]byte(name)), exclusive)
	if err != nil {
		return nil, false, fmt.Errorf("lock shared object %q: %w", name, err)
	}
	return l, ok, nil
}

func (s *Store) byteLocks() *boltfile.ByteLocks {
	return &boltfile.ByteLocks{
		Dir: s.run, Name: lockName, Locks: s.locks,
		Probe: func() error { return s.probe("lock") },
	}
}

func hashByte(b []byte) int64 {
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:]) & (sharedDomain - 1))
}
