package recovery

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// RestoreRules makes the nftables elements and the rules in iptables' filter table that
// attachments need, if LostSets finds any. It returns the number of restored elements.
func RestoreRules(ctx context.Context, h *roles.Host, flushed bool) (int, error) {
	lost, err := LostSets(ctx, h, flushed)
	if err != nil || len(lost) == 0 {
		return 0, err
	}
	n, err := h.Net.RestoreRules(ctx)
	if n > 0 {
		h.Log.Warn("another program deleted cnibox's nftables tables or rules: they were restored", "elements", n)
	}
	return n, err
}

// LostSets lists cnibox's nftables sets that attachments need and whose table another program
// deleted, as `nft flush ruleset` does. It costs two requests if the tables exist, and also a search
// in the records if they do not. With flushed it also reads cnibox's base chains, and lists the sets whose rules
// were deleted, as `nft flush table` does.
func LostSets(ctx context.Context, h *roles.Host, flushed bool) ([]string, error) {
	lost, err := h.Net.LostSets(ctx)
	if err == nil && len(lost) == 0 && flushed {
		lost, err = h.Net.FlushedSets(ctx)
	}
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		if !tx.MentionsSet(lost) {
			lost = nil
		}
		return nil
	})
	return lost, err
}
