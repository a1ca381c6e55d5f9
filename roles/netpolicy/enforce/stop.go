package enforce

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Stop ends the enforcement of network policies on the node: it removes the rules, the saved policies, and last the mark. The agent must
// not enforce them any more. A call that fails can be repeated.
func Stop(ctx context.Context, h *roles.Host) error {
	on, err := Marked(ctx, h.Store)
	if err != nil {
		return err
	}
	exists, err := podfilter.Exists(ctx)
	if !on && !exists {
		return nil //nolint:nilerr // a kernel without nftables has no rules
	}
	filter, err := podfilter.Open(h.Net) //nolint:contextcheck // it listens until Close
	if err != nil {
		return err
	}
	err = filter.Remove(ctx)
	if err == nil {
		err = removeSaved(h.Store)
	}
	if err == nil {
		err = filter.Remove(ctx) // an ADD that read the saved policies before may have made the table again
	}
	if err = errors.Join(err, filter.Close()); err != nil {
		return err
	}
	return h.Store.SetEnforcing(ctx, nil)
}

func removeSaved(s *store.Store) error {
	err := os.Remove(SavedPath(s))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// Marked reports whether the node enforces network policies: whether its state says so, or there are saved policies.
func Marked(ctx context.Context, s *store.Store) (bool, error) {
	if _, err := os.Lstat(SavedPath(s)); err == nil {
		return true, nil
	}
	on, err := store.Read(ctx, s, func(tx *store.Tx) (bool, error) { return tx.Enforces(), nil })
	if err != nil || on {
		return on, err
	}
	e, err := store.ReadKeep(ctx, s, (*store.KeepTx).Enforcing)
	return e != nil, err
}
