package cloud

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// hasSpare tells whether a source has an address for another attachment. In doubt it
// has: to give one tells more.
func (a *handler) hasSpare(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource) bool {
	links, err := a.look(ctx, h, source)
	if err != nil {
		return true
	}
	alloc, _, err := a.allocatorOn(nil, source, links)
	if err == nil {
		err = alloc.Status(ctx, h, req)
	}
	return !errors.Is(err, roles.ErrExhausted)
}
