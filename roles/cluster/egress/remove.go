package egress

import (
	"context"
	"errors"
	"time"

	"github.com/cnibox/cnibox/netops/egress"
	"github.com/cnibox/cnibox/roles"
)

// strayTime is how long other nodes may send packets of their pods to a node that has stopped to hold addresses.
const strayTime = 2 * leaseDuration

// Remove removes what a Keeper made.
func Remove(ctx context.Context, h *roles.Host) error {
	k, err := egress.Open(h.Net.Clone()) //nolint:contextcheck // it listens until Close
	if err != nil {
		return err
	}
	return errors.Join(k.Remove(ctx), k.Close())
}

// Retire removes what a Keeper made, on a node whose agent does without one. Other nodes may send packets of their pods for a while, which
// are dropped until then: the node would forward them with its own address.
func Retire(ctx context.Context, h *roles.Host) error {
	exists, err := egress.Exists(ctx)
	if err != nil || !exists {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(strayTime):
	}
	return Remove(ctx, h)
}
