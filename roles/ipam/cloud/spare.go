package cloud

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// hasSpare reports whether a source has an address for another attachment. It returns true if this
// is unknown: the allocation returns the error.
func (a *handler) hasSpare(ctx context.Context, h *roles.Host, req *roles.Request, source *store.CloudSource) bool {
	links, err := a.relevantLinks(ctx, h, source)
	if err != nil {
		return true
	}
	alloc, _, err := a.allocatorOn(nil, source, links)
	if err == nil {
		err = alloc.Status(ctx, h, req)
	}
	return !errors.Is(err, roles.ErrExhausted)
}
