package recovery

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// RestoreRules makes the nftables elements and the rules in iptables' filter table that
// attachments need, if another program deleted cnibox's tables, as `nft flush ruleset`
// does. It costs two requests if the tables exist, and also a search in the records if
// they do not. It returns the number of
// restored elements.
func RestoreRules(ctx context.Context, h *roles.Host) (int, error) {
	lost, err := h.Net.LostSets(ctx)
	if err != nil || len(lost) == 0 {
		return 0, err
	}
	needed := false
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		needed = tx.MentionsSet(lost)
		return nil
	})
	if err != nil || !needed {
		return 0, err
	}
	n, err := h.Net.RestoreRules(ctx)
	if n > 0 {
		h.Log.Warn("another program deleted cnibox's nftables tables: they were restored", "elements", n)
	}
	return n, err
}
