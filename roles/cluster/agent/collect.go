package agent

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// collectInterval is the time between two searches for attachments of containers that do not exist. The
// second search that finds one collects it, so that a runtime has the time to delete it.
const collectInterval = time.Minute

// collect collects attachments whose DEL never came or failed, at each tick until ctx ends.
func (a *agent) collect(ctx context.Context, ticks <-chan time.Time) {
	own := *a.host
	own.Net = own.Net.Clone()
	defer own.Net.Close() //nolint:errcheck // the records of what was not deleted stay
	var before map[store.Key]bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		before = a.collectGone(ctx, &own, before)
	}
}

// collectGone collects the attachments that are gone and were gone before, and returns all that are gone now.
func (a *agent) collectGone(ctx context.Context, h *roles.Host, before map[store.Key]bool) map[store.Key]bool {
	gone, n, err := attachment.Collect(ctx, h, before)
	a.counters.addCollected(n)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("collect attachments", "error", err)
	}
	return gone
}
