package recovery

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// RestoreRules makes the nftables elements and the rules in iptables' filter table that
// attachments need, if LostSets finds any. It returns the number of restored elements.
func RestoreRules(ctx context.Context, h *roles.Host, flushed bool) (int, error) {
	lost, err := LostSets(ctx, h, flushed)
	if err != nil || len(lost) == 0 {
		return 0, err
	}
	n, err := RestoreAll(ctx, h)
	if n > 0 {
		h.Log.Warn("another program deleted cnibox's nftables tables or rules: they were restored", "elements", n)
	}
	return n, err
}

// RestoreAll makes all elements and rules that attachments need, and returns their number. If there were any, it deletes the tracked
// connections to published UDP ports: without the rules they led elsewhere, and still do.
func RestoreAll(ctx context.Context, h *roles.Host) (int, error) {
	n, err := h.Net.RestoreRules(ctx)
	if n > 0 {
		err = errors.Join(err, forgetFlows(ctx, h))
	}
	return n, err
}

func forgetFlows(ctx context.Context, h *roles.Host) error {
	claims, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Claim, error) { return tx.Claims(store.KindPort) })
	var plan netops.Plan
	for _, f := range attachment.UDPFlows(claims) {
		plan.Changes = append(plan.Changes, netops.Change{Do: netops.Step{Verb: netops.VerbDel, Object: f.Flows}})
	}
	return errors.Join(err, h.Net.Apply(ctx, plan, nil))
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
