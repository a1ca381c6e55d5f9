// Package clusterrange is the IPAM role range, which is also called whereabouts: addresses from ranges that
// span nodes. The agent leases blocks of a range for this node in the cluster's registry, and ADD allocates
// from them with no request to the registry. See docs/range.md.
package clusterrange

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// names are the CNI types of the role.
func names() []string { return []string{"range", "whereabouts"} }

// Role returns the entry of the IPAM role range in the table of roles.
func Role() roles.Role {
	return roles.Role{
		Names:   names(),
		Kind:    roles.IPAM,
		Summary: "addresses from ranges that span the nodes of a cluster",
		Args:    append([]string{"IP"}, sticky.Args()...),
		Conf:    func() any { return new(Conf) },
		Ignored: ignored(),
		Moves: func(conf []byte) bool {
			a, err := newHandler(conf)
			return err == nil && a.moves()
		},
		New:   func(conf []byte) (roles.Handler, error) { return newHandler(conf) },
		Undo:  func([]byte) (roles.Handler, error) { return leasing.Undo{}, nil },
		Verbs: commands,
	}
}

// handler implements the verbs for one network configuration.
type handler struct {
	*leasing.Allocator
	// network is the network's name, pool the name of its pool of blocks.
	network, pool string
	// sticky is nil if addresses are not kept. ipamClaim is the name of an IPAMClaim, or "".
	sticky    *sticky.Rules
	ipamClaim string
	routes    []*types.Route
	dns       types.DNS
}

var (
	_ roles.Checker   = (*handler)(nil)
	_ roles.Collector = (*handler)(nil)
	_ roles.Statuser  = (*handler)(nil)
	_ roles.Previewer = (*handler)(nil)
)

// addTime bounds the attempts of one ADD, if other ADDs take the addresses of each new block. maxVain bounds the
// answers after which this node has the same blocks as before: the agent counts free addresses that ADD does not find.
const (
	addTime = 20 * time.Second
	maxVain = 2
)

// Add gives an attachment one address of each range, or none after an error. If this node's blocks have none, it
// waits for the agent.
func (a *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	requests, err := a.Plan.AddressRequests(req)
	if err != nil {
		return nil, err
	}
	if a.moves() {
		return a.addReserved(ctx, h, req)
	}
	var before []netip.Addr
	vain := 0
	for began := h.Now(); ; {
		grants, err := a.Allocate(ctx, h, req, requests)
		if err == nil {
			_ = ranges.Notify(h) // the next ADD that finds no address asks the agent
			return a.result(grants), nil
		}
		if !errors.Is(err, roles.ErrExhausted) || h.Now().Sub(began) > addTime {
			return nil, err
		}
		held, readErr := blocks(ctx, h)
		if readErr != nil {
			return nil, readErr
		}
		if before != nil && slices.Equal(before, held) {
			vain++
		}
		if vain == maxVain {
			return nil, fmt.Errorf("%w: the agent leased no further block: %w", roles.ErrTryAgain, err)
		}
		before = held
		if err := ranges.Ask(ctx, h, a.demands(h.Now())); err != nil {
			return nil, err
		}
	}
}

// blocks returns the first addresses of this node's blocks. It is not nil.
func blocks(ctx context.Context, h *roles.Host) (firsts []netip.Addr, err error) {
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		firsts = []netip.Addr{}
		all, err := tx.RangeBlocks()
		for i := range all {
			firsts = append(firsts, all[i].First)
		}
		return err
	})
	return firsts, err
}

// Preview returns the next addresses of this node's blocks. A repeated call returns the same.
func (a *handler) Preview(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	requests, err := a.Plan.AddressRequests(req)
	if err != nil {
		return nil, err
	}
	from := a.Allocator
	if a.moves() {
		if _, from, err = a.reservation(req, h.Now()); err != nil {
			return nil, err
		}
	}
	grants, err := from.Preview(ctx, h, req, requests)
	switch {
	case !errors.Is(err, roles.ErrExhausted):
	case a.moves():
		err = fmt.Errorf("%w: ADD would ask the agent for a reservation: %w", roles.ErrUnplanned, err)
	default:
		err = fmt.Errorf("%w: ADD would wait for a block of the agent: %w", roles.ErrUnplanned, err)
	}
	if err != nil {
		return nil, err
	}
	return a.result(grants), nil
}

func (a *handler) result(grants []leasing.Grant) *roles.Result {
	r := roles.NewResult(a.routes, a.dns)
	leasing.AddIPs(r, grants)
	return r
}

// Del releases all addresses of an attachment. An attachment without addresses is not an error.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	_, err := leasing.Release(ctx, h, req)
	if err == nil {
		_ = ranges.Notify(h) // an agent that starts later reads that the address is free
	}
	return err
}

// Status returns nil if an address is available for the next ADD. If this node's blocks have none, it waits for
// the agent, so that the first ADD need not.
func (a *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if a.sticky != nil {
		if err := ranges.Reach(ctx, h); err != nil {
			return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
		}
		return nil
	}
	err := a.Allocator.Status(ctx, h, req)
	if !errors.Is(err, roles.ErrExhausted) {
		return err
	}
	if err := ranges.Ask(ctx, h, a.demands(h.Now())); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return a.Allocator.Status(ctx, h, req)
}
