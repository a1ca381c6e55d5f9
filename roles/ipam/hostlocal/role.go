// Package hostlocal is the IPAM role host-local: addresses from ranges, kept in
// this node's store. It answers as the reference plugin of that name does and
// takes its files over.
package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/sticky"
	"github.com/cnibox/cnibox/store"
)

// Role is the IPAM role host-local.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{"host-local"},
		Kind:         roles.IPAM,
		Summary:      "addresses from ranges, kept on this node",
		Reference:    "v1.9.1",
		Capabilities: []string{"ipRanges", "ips", "mac", sticky.AnnotationsCapability},
		Args:         append([]string{"IP"}, sticky.Args()...),
		Conf:         func() any { return new(Conf) },
		New:          func(conf []byte) (roles.Handler, error) { return newHandler(conf) },
		Undo:         func([]byte) (roles.Handler, error) { return undoer{}, nil },
		Verbs:        commands(),
	}
}

// handler answers for one network configuration.
type handler struct {
	plan *plan
	life liveness
}

var (
	_ roles.Checker   = (*handler)(nil)
	_ roles.Collector = (*handler)(nil)
	_ roles.Statuser  = (*handler)(nil)
	_ roles.Previewer = (*handler)(nil)
)

func newHandler(conf []byte) (*handler, error) {
	c, err := decode(conf)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(c)
	if err != nil {
		return nil, err
	}
	return &handler{plan: p, life: nodeLiveness()}, nil
}

func (a *handler) poolID(network string) store.PoolID {
	return store.PoolID{DataDir: a.plan.dataDir, Network: network}
}

// Add gives an attachment one address of every range set, or none at all. When
// a set is exhausted, or a requested address is taken, owners that are
// certainly dead are removed first. A second Add of an attachment is an
// ErrAttached, unless its owner is dead. Where addresses stick, it gives those
// that are kept for the pod, see chooser.
func (a *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	bySet, err := a.requests(req)
	if err != nil {
		return nil, err
	}
	result, err := a.result()
	if err != nil {
		return nil, err
	}
	if err := a.importOnce(ctx, h, req.Network, lockDeadline); err != nil {
		return nil, err
	}
	grants, err := a.allocate(ctx, h, req, bySet)
	if err != nil {
		return nil, a.explain(ctx, h, req.Network, err)
	}
	addIPs(result, grants)
	return result, nil
}

// requests finds out which addresses are asked for, by the highest of
// runtimeConfig.ips, args.cni.ips, CNI_ARGS' IP and the pod's annotation, and of
// which sets.
func (a *handler) requests(req *roles.Request) ([]request, error) {
	if len(a.plan.sets) == 0 {
		return nil, &roles.ConfError{Path: "runtimeConfig.ipRanges", Reason: "is required, as ipam.ranges is empty"}
	}
	asked := a.plan.requests
	if len(asked) == 0 {
		var err error
		if asked, err = argsRequest(req.Args); err != nil {
			return nil, err
		}
	}
	if len(asked) == 0 {
		asked = a.plan.annotated
	}
	return assign(a.plan.sets, asked)
}

// result is the answer without its addresses.
func (a *handler) result() (*roles.Result, error) {
	r := &roles.Result{CNIVersion: types100.ImplementedSpecVersion}
	if a.plan.resolvConf != "" {
		dns, err := readResolvConf(a.plan.resolvConf)
		if err != nil {
			return nil, err
		}
		r.DNS = dns
	}
	for _, route := range a.plan.routes {
		r.Routes = append(r.Routes, route.Copy())
	}
	return r, nil
}

func addIPs(r *roles.Result, grants []grant) {
	for _, g := range grants {
		ip := &types100.IPConfig{Address: roles.IPNet(netip.PrefixFrom(g.addr, g.in.subnet.Bits()))}
		if g.in.gateway.IsValid() {
			ip.Gateway = g.in.gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
	}
}

// releaseDead makes way for a repeated ADD when the leases in the way are of a
// former life of the container: no attachment is recorded and the namespace
// that they were made for is gone. Else it is an ErrAttached.
func (a *handler) releaseDead(ctx context.Context, h *roles.Host, req *roles.Request) error {
	key := req.Key()
	var owned []store.Lease
	recorded := false
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		_, err := tx.Attachment(key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		recorded = err == nil
		pool, err := tx.Pool(a.poolID(req.Network))
		if err != nil {
			return err
		}
		owned, err = pool.Owned(key)
		return err
	})
	if err != nil || len(owned) == 0 {
		return err
	}
	alive := func(l store.Lease) bool { return !a.life.gone(l.Netns) }
	if recorded || slices.ContainsFunc(owned, alive) {
		return fmt.Errorf("%w: container %.64q interface %q on network %q has %s since %s: run DEL first",
			roles.ErrAttached, key.ContainerID, key.IfName, key.Network, addresses(owned), since(owned))
	}
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(a.poolID(req.Network))
		if err != nil {
			return err
		}
		return releaseUnchanged(pool, owned)
	})
}

// releaseUnchanged releases leases that are still as they were read.
func releaseUnchanged(pool *store.Pool, leases []store.Lease) error {
	for _, l := range leases {
		now, err := pool.Lease(l.Address)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if now.Owner != l.Owner || !now.Time.Equal(l.Time) {
			continue
		}
		if err := pool.Release(l.Address); err != nil {
			return err
		}
	}
	return nil
}
