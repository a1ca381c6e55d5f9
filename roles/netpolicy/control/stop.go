package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// ErrAsked is the error of ending the enforcement beside an agent that was asked for it.
var ErrAsked = errors.New("the agent of this node runs with -policy: remove the flag and restart it, or stop it, and repeat the command")

// Off asks an agent that enforces policies only because the node's state says so to end that, waits until it has, and calls Stop.
func Off(ctx context.Context, h *roles.Host) error {
	if isServed(ctx, h) {
		if err := ask(ctx, h.Store, service.PolicyOff, nil, nil); err != nil {
			return err
		}
	}
	within, cancel := context.WithTimeout(ctx, StateTime)
	defer cancel()
	for isServed(within, h) {
		select {
		case <-within.Done():
			return fmt.Errorf("wait until the agent ends the enforcement of network policies: %w", within.Err())
		case <-time.After(offInterval):
		}
	}
	return Stop(ctx, h)
}

// offInterval is the time between two looks whether the agent has ended the enforcement.
const offInterval = 20 * time.Millisecond

// isServed reports whether an agent enforces policies. One that does not answer may.
func isServed(ctx context.Context, h *roles.Host) bool {
	_, err := DeniedAfter(ctx, h.Store, math.MaxInt64)
	return !errors.Is(err, service.ErrAbsent)
}

// Stop ends the enforcement of network policies on the node: it removes the rules, the saved policies, and last the mark. It fails while an
// agent enforces policies. A call that fails can be repeated.
func Stop(ctx context.Context, h *roles.Host) error {
	if isServed(ctx, h) {
		return ErrAsked
	}
	on, err := enforce.Marked(ctx, h.Store)
	if err != nil {
		return err
	}
	exists, _ := podfilter.Exists(ctx) // a kernel without nftables has no rules
	if !on && !exists {
		return nil
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
	err := os.Remove(enforce.SavedPath(s))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(enforce.KeptPath(s)))
}
