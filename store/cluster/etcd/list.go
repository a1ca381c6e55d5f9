package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	// page is how many records one reply has, so that none is large.
	page = 1000
	// maxNodes is more than a network has subnets that anybody uses.
	maxNodes = 100_000
	// relists is how often a list begins anew that etcd compacted away meanwhile.
	relists = 5
)

// end is the first key behind those that begin with prefix.
func end(prefix string) []byte {
	b := []byte(prefix)
	b[len(b)-1]++
	return b
}

// list gives each key below the prefix to fn, as of one revision, which it returns.
func (r *Registry) list(ctx context.Context, begin func(), fn func(keyValue)) (header, error) {
	for try := 1; ; try++ {
		begin()
		h, err := r.pages(ctx, fn)
		var f *failure
		if err == nil || try == relists || !errors.As(err, &f) || f.code() != codeOutOfRange {
			return h, err
		}
	}
}

// pages gives a list's keys to fn. The next page is on its way meanwhile.
func (r *Registry) pages(ctx context.Context, fn func(keyValue)) (header, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pages := make(chan *rangeResponse)
	var at header
	var err error
	go func() {
		defer close(pages)
		at, err = r.fetch(ctx, pages)
	}()
	for p := range pages {
		for _, kv := range p.KVs {
			fn(kv)
		}
	}
	if err != nil {
		return at, fmt.Errorf("list nodes: %w", err)
	}
	return at, nil
}

// fetch sends each page of a list.
func (r *Registry) fetch(ctx context.Context, pages chan<- *rangeResponse) (at header, err error) {
	ask := rangeRequest{Key: []byte(r.o.Prefix + "/"), RangeEnd: end(r.o.Prefix + "/"), Limit: page}
	for count := 0; ; {
		got := &rangeResponse{}
		err := r.c.call(ctx, "/v3/kv/range", ask, got)
		if errors.Is(err, web.ErrTooLarge) && ask.Limit > 1 {
			// Somebody stored what is no record: each for itself can be read.
			ask.Limit = 1
			continue
		}
		if err != nil {
			return at, err
		}
		if ask.Revision == 0 {
			at = got.Header
			ask.Revision = at.Revision
		}
		if count += len(got.KVs); count > maxNodes {
			return at, fmt.Errorf("%w: more than %d keys below %s", cluster.ErrInvalid, maxNodes, r.o.Prefix)
		}
		last := !got.More || len(got.KVs) == 0
		if !last {
			ask.Key = append(slices.Clone(got.KVs[len(got.KVs)-1].Key), 0)
			ask.Limit = min(page, 2*ask.Limit)
		}
		pages <- got
		if last {
			return at, nil
		}
	}
}

// name is the node whose key that is.
func (r *Registry) name(key []byte) (string, bool) {
	return strings.CutPrefix(string(key), r.subnets())
}
