// Package feed keeps the known addresses of the cloud current for all processes of the node. One
// process at a time queries the cloud, at most once per interval. The others use the recorded
// reply.
package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

const (
	// DefaultInterval is the default minimum time between two requests to the cloud.
	DefaultInterval = 10 * time.Second
	// patience limits a call without a recorded reply, hurry a call with one.
	patience = 25 * time.Second
	hurry    = 2 * time.Second
)

// Options select the provider and the interval.
type Options struct {
	// Provider is a name of metadata.Providers. Empty means "auto".
	Provider string
	// URL replaces the provider's base URL. File is the path of the provider "file".
	URL, File string
	// Interval is the minimum time between two requests. 0 means DefaultInterval.
	Interval time.Duration
	// Patient waits up to 25 s for the cloud's reply. Without it the wait ends after 2 s if there
	// is a recorded reply.
	Patient bool
	// Force queries the cloud before the interval has passed. A cloud's Retry-After is still
	// respected.
	Force bool
	// DMI is the directory for auto. Empty means the kernel's directory.
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

// Source returns the name under which the source is recorded, such as "azure http://168.63.129.16".
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

// OptionsOf returns the options of a source by the name that Source returns. It returns false for
// an unknown name.
func OptionsOf(source string) (Options, bool) {
	name, where, _ := strings.Cut(source, " ")
	p, ok := metadata.Lookup(name)
	o := Options{Provider: name}
	switch {
	case where == p.Default: // a provider with several URLs tries all of them
	case name == "file":
		o.File = where
	default:
		o.URL = where
	}
	return o, ok
}

// Known returns the recorded state of a source, also if it is from before the last reboot. For an
// unknown source the error is store.ErrNotFound. It sends no request.
func Known(ctx context.Context, h *roles.Host, source string) (*store.CloudSource, error) {
	s, err := store.Read(ctx, h.Store, func(tx *store.Tx) (*store.CloudSource, error) { return readable(tx.CloudSource(source)) })
	if !errors.Is(err, store.ErrNotFound) {
		return s, err
	}
	s, err = store.ReadKeep(ctx, h.Store, func(tx *store.KeepTx) (*store.CloudSource, error) { return readable(tx.CloudSource(source)) })
	if err != nil {
		return nil, err
	}
	// Waiting times of the last boot no longer apply.
	return &store.CloudSource{Name: source, NICs: s.NICs, Fetched: s.Fetched, Revision: s.Revision, Provider: s.Provider, Dropped: s.Dropped}, nil
}

// Fresh returns the recorded state of the source in a transaction, and whether it can be used
// without a request to the cloud by Current.
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

// readable treats a damaged record as missing, because the cloud can be queried again.
func readable(s *store.CloudSource, err error) (*store.CloudSource, error) {
	if errors.Is(err, store.ErrDamaged) {
		return nil, fmt.Errorf("%w: %w", store.ErrNotFound, err)
	}
	return s, err
}

// Current returns the state of a source. It queries the cloud first if the interval has passed. If
// another process is doing that, Current returns the recorded state. Without a recorded state it
// waits up to 25 s and returns the other process's error. If there is a recorded reply, a failed
// request is recorded and not returned.
//
// The errors are roles.ErrTryAgain if the cloud cannot be queried now, and roles.ErrExhausted if
// it has no addresses. Both wrap an error of package metadata or store.
func Current(ctx context.Context, h *roles.Host, o Options) (*store.CloudSource, error) {
	return Enough(ctx, h, o, func(*store.CloudSource) bool { return true })
}

// Enough is like Current. In addition it behaves like Options.Patient if enough returns false for
// the recorded state, and waits for another process's reply. enough is called only if a request is
// due or in progress.
func Enough(ctx context.Context, h *roles.Host, o Options, enough func(known *store.CloudSource) bool) (*store.CloudSource, error) {
	provider, ok := metadata.Lookup(o.provider())
	if !ok {
		return nil, fmt.Errorf("%w: no provider %q", roles.ErrConf, o.Provider)
	}
	q := &query{h: h, o: o, provider: provider, name: o.Source()}
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
			err = fmt.Errorf("%w: another process queries the cloud (%s) and has no reply yet", roles.ErrTryAgain, q.name)
		}
	}
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	s, due, err = q.begin(ctx)
	if err != nil {
		return nil, err
	}
	if due {
		if s, err = q.send(ctx, s); err != nil {
			return nil, err
		}
	}
	return q.answer(s)
}

// usable reports whether a NIC has addresses for pods.
func usable(nics []store.CloudNIC) bool {
	for i := range nics {
		if nics[i].Usable() {
			return true
		}
	}
	return false
}
