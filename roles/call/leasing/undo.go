package leasing

import (
	"context"

	"github.com/cnibox/cnibox/roles"
)

// Undo is the handler of an invalid configuration. It finds leases by their owner,
// without ranges.
type Undo struct{}

// Add is not called.
func (Undo) Add(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
	return nil, roles.ErrConf
}

// Del releases the attachment's addresses.
func (Undo) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	_, err := Release(ctx, h, req)
	return err
}
