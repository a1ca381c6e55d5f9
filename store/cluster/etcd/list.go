package etcd

import (
	"context"
	"errors"
	"fmt"
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

func (r *Registry) pages(ctx context.Context, fn func(keyValue)) (header, error) {
	var at header
	ask := rangeRequest{Key: []byte(r.o.Prefix + "/"), RangeEnd: end(r.o.Prefix + "/"), Limit: page}
	for count := 0; ; {
		var got rangeResponse
		err := r.c.call(ctx, "/v3/kv/range", ask, &got)
		if errors.Is(err, web.ErrTooLarge) && ask.Limit > 1 {
			// Somebody stored what is no record: each for itself can be read.
			ask.Limit = max(1, ask.Limit/8)
			continue
		}
		if err != nil {
			return at, fmt.Errorf("list nodes: %w", err)
		}
		if ask.Revision == 0 {
			at = got.Header
			ask.Revision = at.Revision
		}
		for _, kv := range got.KVs {
			fn(kv)
		}
		if count += len(got.KVs); count > maxNodes {
			return at, fmt.Errorf("list nodes: %w: more than %d keys below %s", cluster.ErrInvalid, maxNodes, r.o.Prefix)
		}
		if !got.More || len(got.KVs) == 0 {
			return at, nil
		}
		ask.Key = append(got.KVs[len(got.KVs)-1].Key, 0)
	}
}

// name is the node whose key that is.
func (r *Registry) name(key []byte) (string, bool) {
	return strings.CutPrefix(string(key), r.subnets())
}
