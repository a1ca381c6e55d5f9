package iptables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// removeUnused deletes the administrator's chain if it is empty and no rule jumps to it.
// Then it deletes the table if only an empty FORWARD chain with policy accept is
// left: the first of cnibox's rules made that chain.
func (t *nftTable) removeUnused(ctx context.Context, admin string) error {
	st, err := t.Read(ctx, ForwardChain, admin)
	if err != nil {
		return err
	}
	if c := st.Chains[admin]; c != nil && len(c.Rules) == 0 {
		_, err := t.Commit(ctx, st, []Op{{Kind: deleteChain, Chain: admin}})
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if st, err = t.Read(ctx, ForwardChain, admin); err != nil {
			return err
		}
	}
	if c := st.Chains[ForwardChain]; c == nil || c.drops || len(c.Rules) > 0 {
		return nil
	}
	chains, err := t.chainNames(ctx)
	if err != nil || len(chains) != 1 {
		return err
	}
	_, err = t.Commit(ctx, st, []Op{{Kind: DeleteTable}}) // if another program changes the table, it stays
	return err
}
