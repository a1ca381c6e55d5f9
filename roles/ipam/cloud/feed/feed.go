// Package feed keeps what the cloud says of this node's addresses current, for
// all processes of the node together: one asks, at most once an interval, and the
// others take what is there.
package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/ipam/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

const (
	// DefaultInterval is the least time between two questions to the cloud.
	DefaultInterval = 10 * time.Second
	// patience bounds a call that has nothing to fall back on, hurry one that has.
	patience = 25 * time.Second
	hurry    = 2 * time.Second
)

// Options say whom to ask, and how often.
type Options struct {
	// Provider is a name of metadata.Providers; empty: "auto".
	Provider string
	// URL replaces the provider's own base URL, File the provider "file"'s path.
	URL, File string
	// Interval is the least time between two questions; 0: DefaultInterval.
	Interval time.Duration
	// Patient waits for the cloud's answer as long as that takes, 25 s at most. Without it
	// a cloud that does not answer within 2 s is given up when something is known already.
	Patient bool
	// Force asks though the interval has not passed; a cloud that wants to be left
	// alone is, all the same.
	Force bool
	// DMI is where auto looks; empty: the kernel's directory.
	DMI string
}

func (o Options) provider() string {
	if o.Provider == "" {
		return "auto"
	}
	return o.Provider
}

func (o Options) interval() time.Duration {
	if o.Interval <= 0 {
		return DefaultInterval
	}
	return o.Interval
}

// Source is the name under which the source is recorded: "azure http://168.63.129.16".
func (o Options) Source() string {
	p, _ := metadata.Lookup(o.provider())
	where := p.Default
	switch {
	case o.provider() == "file" && o.File != "":
		where = o.File
	case o.provider() != "file" && o.URL != "":
		where = strings.TrimSuffix(o.URL, "/")
	}
	return strings.TrimSpace(o.provider() + " " + where)
}

// OptionsOf are the options of a source that is recorded under a name of Source;
// false for no such name.
func OptionsOf(source string) (Options, bool) {
	name, where, _ := strings.Cut(source, " ")
	p, ok := metadata.Lookup(name)
	o := Options{Provider: name}
	switch {
	case where == p.Default: // a provider that has several asks them all
	case name == "file":
		o.File = where
	default:
		o.URL = where
	}
	return o, ok
}

// Known is what is recorded of a source, also of one before the last reboot; of an
// unknown one the error is store.ErrNotFound. It asks nobody.
func Known(ctx context.Context, h *roles.Host, source string) (*store.CloudSource, error) {
	var s *store.CloudSource
	err := h.Store.View(ctx, func(tx *store.Tx) (err error) {
		s, err = readable(tx.CloudSource(source))
		return err
	})
	if !errors.Is(err, store.ErrNotFound) {
		return s, err
	}
	err = h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		s, err = readable(tx.CloudSource(source))
		return err
	})
	if err != nil {
		return nil, err
	}
	// What was to be waited for, and for how long, ended with that boot.
	return &store.CloudSource{Name: source, NICs: s.NICs, Fetched: s.Fetched, Revision: s.Revision, Provider: s.Provider, Dropped: s.Dropped}, nil
}

// Fresh is what is known of the source within a transaction, and whether that will
// do: not when the cloud ought to be asked first, by Current.
func (o Options) Fresh(tx *store.Tx, now time.Time) (*store.CloudSource, bool, error) {
	s, err := readable(tx.CloudSource(o.Source()))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	return s, usable(s.NICs) && !o.due(s, now), nil
}

// readable takes a record that cannot be read for none: the cloud knows better.
func readable(s *store.CloudSource, err error) (*store.CloudSource, error) {
	if errors.Is(err, store.ErrDamaged) {
		return nil, fmt.Errorf("%w: %w", store.ErrNotFound, err)
	}
	return s, err
}

// Current is what is known of a source, after asking the cloud if the interval has
// passed. Who finds somebody else asking takes what is known; only when nothing is
// known it waits, 25 s at most, and gets the other's error. With a known reply a
// failed question is recorded, and no error.
//
// The error is roles.ErrTryAgain when the cloud cannot be asked now and roles.ErrExhausted when it shows no
// addresses, both wrapping an error of package metadata, or an error of the store.
func Current(ctx context.Context, h *roles.Host, o Options) (*store.CloudSource, error) {
	return Enough(ctx, h, o, func(*store.CloudSource) bool { return true })
}

// Enough is Current that is as patient as Options.Patient where what is known is not
// enough to go on with, which is asked only while the cloud is. Then it waits for
// another's answer too.
func Enough(ctx context.Context, h *roles.Host, o Options, enough func(known *store.CloudSource) bool) (*store.CloudSource, error) {
	provider, ok := metadata.Lookup(o.provider())
	if !ok {
		return nil, fmt.Errorf("%w: no provider %q", roles.ErrConf, o.Provider)
	}
	q := &question{h: h, o: o, provider: provider, name: o.Source()}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := q.known(ctx)
	if err != nil {
		return nil, err
	}
	due, waiting := o.due(s, h.Now()), s.Answered.Before(s.Asked)
	if !due && !waiting {
		return q.answer(s)
	}
	q.o.Patient = o.Patient || !usable(s.NICs) || !enough(s)
	if !due && !q.o.Patient {
		return q.answer(s)
	}
	lock, mine, err := h.Store.TryLockShared(ctx, q.lock(), true)
	if err == nil && !mine {
		if !q.o.Patient {
			return s, nil
		}
		if lock, err = h.Store.LockShared(ctx, q.lock(), true); err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w: another process asks the cloud (%s), and has no answer yet", roles.ErrTryAgain, q.name)
		}
	}
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	s, asking, err := q.begin(ctx)
	if err != nil {
		return nil, err
	}
	if asking {
		if s, err = q.ask(ctx, s); err != nil {
			return nil, err
		}
	}
	return q.answer(s)
}

// usable tells whether there are addresses for pods.
func usable(nics []store.CloudNIC) bool {
	return slices.ContainsFunc(nics, func(n store.CloudNIC) bool { return n.Usable() })
}
