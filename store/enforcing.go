package store

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// enforcingKind and enforcingName are the key of the mark of a node that enforces network policies. keep.db has the mark. node.db has a
// copy, which ADD reads in a transaction that it needs anyway: keep.db would cost each ADD of each node its own.
const (
	enforcingKind = "policy"
	enforcingName = "enforced"
)

// Enforcing is the mark of a node that enforces network policies.
type Enforcing struct {
	Since time.Time `json:"since,omitzero"`
	// Known is true if the policies were read and saved once.
	Known bool `json:"known,omitempty"`
	// Source is where the policies come from.
	Source PolicySource `json:"source,omitzero"`
}

// PolicySource is where a node's agent reads network policies.
type PolicySource struct {
	// Kube is true for the API server. Otherwise Dir is a directory of files.
	Kube bool   `json:"kube,omitempty"`
	Dir  string `json:"dir,omitempty"`
}

// Enforces reports whether the node enforces network policies.
func (tx *Tx) Enforces() bool {
	return kv.Raw(tx.b, bucketMarks, kv.EncodeKey(enforcingKind, enforcingName)) != nil
}

// SetEnforcing stores the mark of a node that enforces network policies, or with nil deletes it. Since and Known of an earlier mark stay. It outlives reboots and the loss of
// node.db. If the process is killed between the files, node.db has a mark that keep.db lacks, and ADD refuses pods: repeat the call.
func (s *Store) SetEnforcing(ctx context.Context, e *Enforcing) error {
	had, err := ReadKeep(ctx, s, (*KeepTx).Enforcing)
	if err != nil {
		return err
	}
	marked, err := Read(ctx, s, func(tx *Tx) (bool, error) { return tx.Enforces(), nil })
	if err != nil {
		return err
	}
	switch {
	case e == nil && had == nil && !marked:
		return nil
	case e != nil && had != nil:
		e.Since, e.Known = had.Since, e.Known || had.Known
		if marked && *e == *had {
			return nil
		}
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	err = s.KeepUpdate(ctx, func(tx *KeepTx) error {
		if e == nil {
			return tx.Unmark(enforcingKind, enforcingName)
		}
		return tx.Mark(enforcingKind, enforcingName, raw)
	})
	if err != nil {
		return err
	}
	return s.Update(ctx, func(tx *Tx) error { return putEnforcing(tx.b, e != nil, raw) })
}

func putEnforcing(b *bolt.Tx, on bool, raw json.RawMessage) error {
	if !on {
		return kv.Delete(b, bucketMarks, kv.EncodeKey(enforcingKind, enforcingName))
	}
	return kv.Store(b, bucketMarks, "mark", mark{Value: raw}, enforcingKind, enforcingName)
}

// Enforcing returns the mark, or nil.
func (tx *KeepTx) Enforcing() (*Enforcing, error) {
	raw, is, err := tx.Marked(enforcingKind, enforcingName)
	if err != nil || !is {
		return nil, err
	}
	e := new(Enforcing)
	if json.Unmarshal(raw, e) != nil {
		return new(Enforcing), nil // a newer version's
	}
	return e, nil
}

// PolicyPath is the path of the saved network policies. The file is in the state directory, because it must outlive a boot: pods can
// start before the agent. It exists on a node whose agent enforces policies.
func (s *Store) PolicyPath() string { return filepath.Join(s.StateDir(), "policy.json") }

// copyEnforcing copies the mark into a new node.db. A damaged keep.db of a node with saved policies had it.
func (s *Store) copyEnforcing(ctx context.Context, b *bolt.Tx) error {
	var e *Enforcing
	err := s.KeepTryView(ctx, func(tx *KeepTx) (err error) {
		e, err = tx.Enforcing()
		return err
	})
	switch {
	case errors.Is(err, ErrDamaged):
		_, err := os.Lstat(s.PolicyPath())
		return putEnforcing(b, !errors.Is(err, fs.ErrNotExist), nil)
	case err != nil || e == nil:
		return err
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return putEnforcing(b, true, raw)
}
