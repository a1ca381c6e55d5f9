package ranges

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// askTime bounds the wait of an ADD for the agent.
const askTime = 10 * time.Second

// Ask stores what a network demands and waits until the agent has tried to lease blocks. Errors are
// roles.ErrTryAgain.
func Ask(ctx context.Context, h *roles.Host, demands []store.RangeDemand) error {
	err := h.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range demands {
			if err := tx.PutRangeDemand(&demands[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var said service.Error
	err = ask(ctx, h, service.RangeLease, lease{demands[0].Network})
	switch {
	case errors.As(err, &said):
		return fmt.Errorf("%w: the agent has no block of the range: %w", roles.ErrTryAgain, said)
	case err != nil:
		return fmt.Errorf("%w: no block of the range is leased, and %w", roles.ErrTryAgain, err)
	}
	return nil
}

// lease is the argument of service.RangeLease.
type lease struct {
	Network string `json:"network"`
}

// Refresh makes the agent read all pages, take over the addresses of this node's containers from whereabouts, and
// return the blocks that whereabouts gets again. It is also an error if another program gives addresses of a range.
func Refresh(ctx context.Context, h *roles.Host) error {
	return ask(ctx, h, service.RangeReread, nil)
}

// AskReservation waits until this node holds a reservation, whose addresses are then in node.db, or until the agent has
// freed it. Errors are roles.ErrTryAgain, unless it was to be freed.
func AskReservation(ctx context.Context, h *roles.Host, d *Reserve) error {
	err := ask(ctx, h, service.RangeReserve, d)
	switch {
	case errors.Is(err, service.ErrTooLong):
		return fmt.Errorf("the ranges of the network %q have too many parts: exclude fewer addresses", d.Network)
	case err != nil && !d.Free:
		return fmt.Errorf("%w: reserve addresses: %w", roles.ErrTryAgain, err)
	}
	return err
}

// ask waits until the agent has answered. Its refusal is a service.Error.
func ask(ctx context.Context, h *roles.Host, name string, args any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var said service.Error
	err := service.Ask(ctx, h.Store.AgentSocket(), name, args, nil)
	if err != nil && !errors.As(err, &said) {
		err = fmt.Errorf("the agent does not answer: start 'cnibox agent' on this node: %w", err)
	}
	return err
}

// Notify informs the agent that addresses were given out, so that it leases the next block before it is
// needed, or released. It does not wait.
func Notify(h *roles.Host) error { return service.Tell(h.Store.AgentSocket(), service.RangeNotify) }

// Reach returns an error unless the agent leases blocks. It does not wait for a lease.
func Reach(ctx context.Context, h *roles.Host) error { return ask(ctx, h, service.RangeNotify, nil) }

// request waits for a block of a network, for a reservation, or until all pages were read again.
type request struct {
	lease
	reserve *Reserve
	reread  bool
	// done receives the answer, of which there is one.
	done chan error
}

// handlers returns what passes requests on to Run.
func (k *Keeper) handlers() map[string]service.Handler {
	pass := func(ctx context.Context, r *request) error {
		r.done = make(chan error, 1)
		answer, err := service.Pass(ctx, k.requests, r, r.done)
		return cmp.Or(err, answer)
	}
	return map[string]service.Handler{
		service.RangeNotify: func(context.Context, *service.Request) (any, error) {
			select {
			case k.notified <- struct{}{}:
			default: // another one is pending
			}
			return nil, nil
		},
		service.RangeReread: func(ctx context.Context, _ *service.Request) (any, error) {
			return nil, pass(ctx, &request{reread: true})
		},
		service.RangeLease: func(ctx context.Context, asked *service.Request) (any, error) {
			r := &request{}
			if err := asked.Decode(&r.lease); err != nil {
				return nil, err
			}
			return nil, pass(ctx, r)
		},
		service.RangeReserve: func(ctx context.Context, asked *service.Request) (any, error) {
			r := &request{reserve: &Reserve{}}
			if err := asked.Decode(r.reserve); err != nil {
				return nil, err
			}
			return nil, pass(ctx, r)
		},
	}
}
