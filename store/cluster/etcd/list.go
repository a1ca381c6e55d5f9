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
	// page is the number of records in one reply.
	page = 1000
	// maxNodes bounds the number of records.
	maxNodes = 100_000
	// relists bounds the attempts at a list whose revision etcd compacts.
	relists = 5
)

// end returns the first key after all keys that begin with prefix.
func end(prefix string) []byte {
	b := []byte(prefix)
	b[len(b)-1]++
	return b
}

// list calls fn with each key below the prefix. All are of one revision, which it returns. It calls
// begin before the first key of each attempt.
func (c *client) list(ctx context.Context, prefix string, begin func(), fn func(keyValue)) (header, error) {
	for try := 1; ; try++ {
		begin()
		h, err := c.pages(ctx, rangeRequest{Key: []byte(prefix), RangeEnd: end(prefix), Limit: page}, true, fn)
		var f *failure
		if err == nil || try == relists || !errors.As(err, &f) || f.code() != codeOutOfRange {
			return h, err
		}
	}
}

// pages calls fn with the keys of a range, Limit of them in one reply. All are of one revision if fixed is true, which etcd may compact
// meanwhile. It fetches the next page meanwhile.
func (c *client) pages(ctx context.Context, ask rangeRequest, fixed bool, fn func(keyValue)) (header, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pages := make(chan *rangeResponse)
	var at header
	var err error
	prefix := string(ask.Key)
	go func() {
		defer close(pages)
		at, err = c.fetch(ctx, ask, fixed, pages)
	}()
	for p := range pages {
		for _, kv := range p.KVs {
			fn(kv)
		}
	}
	if err != nil {
		return at, fmt.Errorf("list %s: %w", prefix, err)
	}
	return at, nil
}

// fetch sends each page of a list to a channel.
func (c *client) fetch(ctx context.Context, ask rangeRequest, fixed bool, pages chan<- *rangeResponse) (at header, err error) {
	most := ask.Limit
	for count := 0; ; {
		got := &rangeResponse{}
		err := c.call(ctx, "/v3/kv/range", ask, got)
		if errors.Is(err, web.ErrTooLarge) && ask.Limit > 1 {
			// A page with huge values is too large. Read its records one by one.
			ask.Limit = 1
			continue
		}
		if err != nil {
			return at, err
		}
		if count == 0 {
			at = got.Header
		}
		if fixed {
			ask.Revision = at.Revision
		}
		count += len(got.KVs)
		if count > maxNodes {
			return at, fmt.Errorf("%w: more than %d keys", cluster.ErrInvalid, maxNodes)
		}
		last := !got.More || len(got.KVs) == 0
		if !last {
			ask.Key = append(slices.Clone(got.KVs[len(got.KVs)-1].Key), 0)
			ask.Limit = min(most, 2*ask.Limit)
		}
		pages <- got
		if last {
			return at, nil
		}
	}
}

// list is client.list of the nodes and the configuration.
func (r *Registry) list(ctx context.Context, begin func(), fn func(keyValue)) (header, error) {
	return r.c.list(ctx, r.o.Prefix+"/", begin, fn)
}

// name returns the node of a key.
func (r *Registry) name(key []byte) (string, bool) {
	return strings.CutPrefix(string(key), r.subnets())
}
