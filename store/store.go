package store

import (
	"context"
	"time"
)

// Options of a Store. The zero value is not usable; see Default.
type Options struct {
	// RunDir holds what dies with the boot: RunDir/<boot id>/node.db.
	RunDir string
	// StateDir holds keep.db.
	StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// LockTimeout bounds every wait for a lock.
	LockTimeout time.Duration
	// Role is written beside a held lock, so that a waiter can name the holder.
	Role string
	// Fresh is called in the transaction that makes a new node.db, before
	// anything else is stored: it rebuilds from the kernel, or refuses.
	Fresh func(ctx context.Context, tx *Tx) error
	// Probe sees every transaction and lock; tests make the n-th one fail.
	Probe func(op string) error
}

// Store opens its files late and closes them early: each transaction opens,
// locks, commits and closes, so nothing is held across netlink or another program.
type Store struct{ o Options }

// Tx is one transaction on node.db.
type Tx struct{}
