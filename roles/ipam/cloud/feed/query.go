package feed

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

// query is one call of Current.
type query struct {
	h        *roles.Host
	o        Options
	provider metadata.Provider
	name     string
}

// lock returns the name of the lock of the querying process. It is held from before the request
// is recorded until after the reply is.
func (q *query) lock() string { return "cloud " + q.name }

// known returns the recorded state, or only the name of an unknown source.
func (q *query) known(ctx context.Context) (*store.CloudSource, error) {
	s, err := Known(ctx, q.h, q.name)
	if errors.Is(err, store.ErrNotFound) {
		return &store.CloudSource{Name: q.name}, nil
	}
	return s, err
}

// begin records that this process sends a request to the cloud, and reports that a request is due.
// Otherwise another process has sent one meanwhile, and begin records nothing.
func (q *query) begin(ctx context.Context) (s *store.CloudSource, due bool, err error) {
	if s, err = q.known(ctx); err != nil {
		return nil, false, err
	}
	now := q.h.Now()
	if !q.o.due(s, now) {
		return s, false, nil
	}
	s.Asked = now
	return s, true, q.h.Store.Update(ctx, func(tx *store.Tx) error { return tx.PutCloudSource(s) })
}

// send queries the cloud and records the result. Its errors are the store's or ctx's.
func (q *query) send(ctx context.Context, s *store.CloudSource) (*store.CloudSource, error) {
	limited, cancel := ctx, func() {}
	if !q.o.Patient && usable(s.NICs) {
		limited, cancel = context.WithTimeout(ctx, hurry)
	}
	defer cancel()
	reply, err := q.provider.Fetch(limited, metadata.Query{URL: q.o.URL, File: q.o.File, DMI: q.o.DMI, Own: q.nodes(ctx)})
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err() // the next process queries again
	}
	if err != nil {
		q.h.Log.Warn("query the cloud for addresses", slog.String("source", q.name), slog.Any("error", err))
	}
	// A late reply and a timeout are recorded, too.
	done := context.WithoutCancel(ctx)
	now := q.h.Now()
	if q.o.recordReply(s, reply, err, now) && err == nil {
		if err := q.h.Store.KeepUpdate(done, func(tx *store.KeepTx) error { return tx.PutCloudSource(s) }); err != nil {
			q.h.Log.Warn("store the cloud's reply in keep.db", slog.Any("error", err))
		}
	}
	return s, q.h.Store.Update(done, func(tx *store.Tx) error {
		if err := markWithdrawn(tx, s, now); err != nil {
			return err
		}
		return tx.PutCloudSource(s)
	})
}

// nodes returns the addresses of the node's links. If they cannot be read, only the cloud's
// information about own addresses is used.
func (q *query) nodes(ctx context.Context) []netip.Addr {
	links, err := q.h.Net.Links(ctx, nil)
	if err != nil {
		q.h.Log.Warn("list the node's addresses", slog.Any("error", err))
		return nil
	}
	var own []netip.Addr
	for _, l := range links {
		for _, p := range l.Addresses {
			if !slices.Contains(own, p.Addr()) {
				own = append(own, p.Addr())
			}
		}
	}
	return own
}
