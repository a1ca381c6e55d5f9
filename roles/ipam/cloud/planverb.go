package cloud

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/ipam/cloud/feed"
	"github.com/cnibox/cnibox/roles/leasing"
)

// planVerb returns `cnibox cloud plan`.
func planVerb() roles.CommandVerb {
	read := func(ctx context.Context, h *roles.Host, conf []byte) (*leasing.Allocator, error) {
		a, err := newHandler(conf)
		if err != nil {
			return nil, err
		}
		source, err := feed.Known(ctx, h, a.feed.Source())
		if err != nil {
			return nil, fmt.Errorf("%w: run 'cnibox cloud refresh' first", err)
		}
		alloc, _, err := a.allocator(ctx, h, nil, source)
		return alloc, err
	}
	return leasing.PlanVerb("cloud plan", read, typeName, azureType)
}
