package clusterrange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// moves reports whether the addresses are those of a reservation, which moves between nodes.
func (a *handler) moves() bool { return a.sticky != nil || a.ipamClaim != "" }

// reservation returns the request for an attachment's reservation, and an allocator of its addresses.
func (a *handler) reservation(req *roles.Request, now time.Time) (*ranges.Reserve, *leasing.Allocator, error) {
	if req.Args.Get("IP") != "" {
		return nil, nil, &roles.EnvError{Name: "CNI_ARGS: IP", Reason: "cannot be combined with an IPAMClaim or with ipam.sticky: remove one of them"}
	}
	d := &ranges.Reserve{ReservationID: store.ReservationID{Pool: a.pool, Network: a.network}, TTL: store.KeepForever, Pod: req.Args.Get("K8S_POD_NAME")}
	if a.sticky != nil {
		d.TTL = a.sticky.TTL
	}
	if a.ipamClaim == "" {
		d.Key = a.sticky.Identity(req, req.Args.Get("MAC"))
	} else {
		namespace := req.Args.Get("K8S_POD_NAMESPACE")
		d.Key = ranges.IPAMClaimKey(namespace, a.ipamClaim)
		if namespace == "" {
			return nil, nil, &roles.EnvError{Name: "CNI_ARGS: K8S_POD_NAMESPACE", Reason: "is missing: an IPAMClaim is of the pod's namespace"}
		}
	}
	d.Ranges = a.demands(now)
	return d, a.reserved(d), nil
}

// addReserved gives an attachment the addresses of its reservation. The agent first makes this node a holder of it.
func (a *handler) addReserved(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	d, from, err := a.reservation(req, h.Now())
	if err != nil {
		return nil, err
	}
	if err := ranges.AskReservation(ctx, h, d); err != nil {
		return nil, err
	}
	grants, err := from.Allocate(ctx, h, req, make([]leasing.AddressRequest, len(a.Plan.Sets)))
	endErr := h.Store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		held, err := tx.RangeReservation(d.ReservationID)
		if err != nil {
			return err
		}
		held.Until, held.UntilBoot = time.Time{}, 0
		return tx.PutRangeReservation(held)
	})
	if endErr != nil {
		h.Log.Debug("without a lease, the hold of a reservation ends a minute later", "error", endErr)
	}
	_ = ranges.Notify(h) // the agent reads node.db in its next pass in any case
	if errors.Is(err, roles.ErrExhausted) {
		err = fmt.Errorf("%w: the addresses of the reservation %q are in use on this node: %w", roles.ErrTryAgain, d.Key, err)
	}
	if err != nil {
		return nil, err
	}
	return a.result(grants), nil
}

// reserved returns an allocator of a reservation's addresses, as long as this node holds it.
func (a *handler) reserved(d *ranges.Reserve) *leasing.Allocator {
	p := *a.Plan
	p.Within = func(tx *store.Tx, h *roles.Host) ([]leasing.Set, error) {
		held, err := tx.RangeReservation(d.ReservationID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		out := make([]leasing.Set, len(a.Plan.Sets))
		for i, s := range a.Plan.Sets {
			r := s[0]
			r.Free, r.Quiet = nil, held.Quiet
			if err == nil && held.Valid(h.Now(), h.SinceBoot()) && len(held.Addresses) == len(out) {
				r.Free = leasing.Within(s[0].Free, leasing.Single(held.Addresses[i]))
			}
			out[i] = leasing.Set{r}
		}
		return out, nil
	}
	return &leasing.Allocator{Plan: &p, Life: a.Life}
}
