// Package node opens a node: it gives a role its Host, with the kernel and the
// state file behind it.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// Options are the directories of a node's state and the properties of the caller.
type Options struct {
	// RunDir and StateDir replace /run/cnibox and /var/lib/cnibox, so that
	// several simulated nodes can live on one machine.
	RunDir, StateDir string
	// CacheDirs are where runtimes keep libcni's results; a rebuild reads them.
	// Empty means /var/lib/cni/results and the command line's own.
	CacheDirs []string
	// LockTimeout replaces the default of 30 s.
	LockTimeout time.Duration
	Role        string
	Program     string
	Log         *slog.Logger
	// IPTables runs iptables-legacy's programs.
	IPTables netops.IPTables
	// Reference becomes the Host's.
	Reference roles.ReferencePlugins
	// NetProbe and StoreProbe let tests make the n-th call fail.
	NetProbe   netops.Probe
	StoreProbe func(op string) error
}

// Open gives a role its Host. Nothing is opened yet: netlink sockets and the
// state file are opened on first use. The returned function closes them; it is
// the last thing that a process does. Delegate is left to the caller.
func Open(_ context.Context, o Options) (*roles.Host, func(), error) {
	so, err := store.DefaultOptions()
	if err != nil {
		return nil, nil, fmt.Errorf("open state: %w", err)
	}
	if o.RunDir != "" {
		so.RunDir = o.RunDir
	}
	if o.StateDir != "" {
		so.StateDir = o.StateDir
	}
	if o.LockTimeout != 0 {
		so.LockTimeout = o.LockTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.CacheDirs) == 0 {
		o.CacheDirs = recovery.CacheDirs(so.RunDir)
	}
	so.Role, so.Program, so.Probe = o.Role, o.Program, o.StoreProbe
	steps := &roles.Steps{}
	so.Waited = func(what string, d time.Duration) {
		steps.Lock.Add(int64(d))
		o.Log.Debug("waited for a lock", "lock", what, "took", d)
	}

	h := &roles.Host{Role: o.Role, Program: o.Program, Log: o.Log, Now: utcNow, SinceBoot: store.SinceBoot, Steps: steps, Reference: o.Reference}
	h.Net = netops.New(netops.Options{
		Probe: o.NetProbe, IPTables: o.IPTables, Spent: &steps.Net,
		Restore:  func(ctx context.Context) ([]*netops.Element, error) { return wanted[*netops.Element](ctx, h.Store) },
		Forwards: func(ctx context.Context) ([]*netops.Forward, error) { return wanted[*netops.Forward](ctx, h.Store) },
		Sources: func(ctx context.Context) ([]*netops.ZoneSource, error) {
			return wanted[*netops.ZoneSource](ctx, h.Store)
		},
		Alone: func(ctx context.Context, restore func() error) error { return attachment.Alone(ctx, h, restore) },
		PodPolicy: func(ctx context.Context, verb netops.Verb, p *netops.PodPolicy) error {
			return enforce.Change(ctx, h.Store, verb, p)
		},
	})
	so.Fresh = func(ctx context.Context, tx *store.Tx) error {
		return recovery.Rebuild(ctx, h, tx, o.CacheDirs)
	}
	if o.Reference != nil {
		so.Mirror = func() store.Mirror { return o.Reference.Mirror(o.Log) }
	}
	h.Store = store.New(so)
	return h, func() {
		if err := h.Net.Close(); err != nil {
			o.Log.Warn("close netlink", "error", err)
		}
	}, nil
}

// utcNow is the wall clock. Records are in UTC: they are compared across nodes,
// and local time would read the zone's file in every call.
func utcNow() time.Time { return time.Now().UTC() }

// wanted lists every object of a kind that recorded attachments and networks need.
// The objects are restored after `nft flush ruleset` or `firewall-cmd --reload`
// removed them.
func wanted[O netops.Object](ctx context.Context, s *store.Store) ([]O, error) {
	var out []O
	err := s.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		if err != nil {
			return err
		}
		var errs []error
		for i := range atts {
			changes, err := attachment.Changes(&atts[i])
			errs = append(errs, err)
			for _, c := range changes {
				if e, ok := c.Do.Object.(O); ok && c.Do.Verb == netops.VerbAdd {
					out = append(out, e)
				}
			}
		}
		nets, err := tx.Networks()
		if err != nil {
			return err
		}
		for _, n := range nets {
			changes, err := attachment.DecodeChanges(n.Shared)
			errs = append(errs, err)
			for _, c := range changes {
				if c.Undo == nil {
					continue
				}
				if e, ok := c.Undo.Object.(O); ok {
					out = append(out, e)
				}
			}
		}
		return errors.Join(errs...)
	})
	return out, err
}
