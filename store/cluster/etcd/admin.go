package etcd

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/store/cluster"
)

// Admin writes the configuration and reservations, to set up a cluster.
type Admin struct {
	r *Registry
}

// NewAdmin returns an Admin. It takes the same options as the nodes.
func NewAdmin(o Options) (*Admin, error) {
	r, err := Open(o)
	if err != nil {
		return nil, err
	}
	return &Admin{r}, nil
}

// SetConfig writes net-conf.json if it is valid.
func (a *Admin) SetConfig(ctx context.Context, conf []byte) error {
	if _, _, err := cluster.ParseSubnetConfig(conf); err != nil {
		return err
	}
	return a.put(ctx, a.r.configKey(), conf)
}

// Reserve reserves a subnet for the node with that address. The key has no lease.
func (a *Admin) Reserve(ctx context.Context, subnet netip.Prefix, publicIP netip.Addr) error {
	n := cluster.Node{PublicIP: publicIP, PodCIDRs: []netip.Prefix{subnet}}
	if err := n.Check(); err != nil {
		return err
	}
	value, err := encode(&n)
	if err != nil {
		return err
	}
	return a.put(ctx, a.r.subnets()+keyOf(n.PodCIDRs), value)
}

func (a *Admin) put(ctx context.Context, key string, value []byte) error {
	if err := a.r.c.call(ctx, "/v3/kv/put", putRequest{Key: []byte(key), Value: value}, &struct{}{}); err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// Clear removes everything below the prefix.
func (a *Admin) Clear(ctx context.Context) error {
	prefix := a.r.o.Prefix + "/"
	if err := a.r.c.call(ctx, "/v3/kv/deleterange", deleteRequest{Key: []byte(prefix), RangeEnd: end(prefix)}, &struct{}{}); err != nil {
		return fmt.Errorf("remove %s: %w", prefix, err)
	}
	return nil
}

// Close ends every connection.
func (a *Admin) Close() error { return a.r.Close() }
