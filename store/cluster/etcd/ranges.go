package etcd

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/store/cluster"
)

// The keys of cluster-wide ranges are beside the prefix of the nodes, so that agents do not read them
// with the nodes:
//
//	<prefix>-ranges/pages/10-1-2-0   a page
//	<prefix>-ranges/nodes/NAME       a node, with a lease of 24 hours
func (r *Registry) rangeNode(name string) string { return r.o.Prefix + "-ranges/nodes/" + name }

// Pages returns the keys of the pages.
func (r *Registry) Pages() cluster.Collection { return r.Collection("ranges/pages") }

// Join renews the lease of the node's key, or makes the key with a new lease.
func (r *Registry) Join(ctx context.Context) error {
	if err := cluster.CheckName(r.o.Node); err != nil {
		return err
	}
	key := r.rangeNode(r.o.Node)
	kv, err := r.c.get(ctx, key)
	if err != nil {
		return fmt.Errorf("record node %s: %w", r.o.Node, err)
	}
	if kv != nil && kv.Lease != 0 {
		if left, err := r.keepAlive(ctx, kv.Lease); err != nil || left > 0 {
			return err
		}
	}
	lease, err := r.grant(ctx)
	if err != nil {
		return err
	}
	put := txnRequest{Success: []operation{{Put: &putRequest{Key: []byte(key), Value: []byte("{}"), Lease: lease.ID}}}}
	if err := r.c.call(ctx, "/v3/kv/txn", put, &txnResponse{}); err != nil {
		return fmt.Errorf("record node %s: %w", r.o.Node, err)
	}
	return nil
}

// Gone reports whether the node's key does not exist.
func (r *Registry) Gone(ctx context.Context, node string) (bool, error) {
	if err := cluster.CheckName(node); err != nil {
		return false, err
	}
	kv, err := r.c.get(ctx, r.rangeNode(node))
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", node, err)
	}
	return kv == nil, nil
}

// ForeignRanges returns none: no other program has its ranges here.
func (*Registry) ForeignRanges(context.Context) ([]cluster.ForeignRange, error) { return nil, nil }
