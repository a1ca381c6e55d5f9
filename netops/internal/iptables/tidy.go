package iptables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// removeUnused deletes the administrator's chain if it is empty and no rule jumps to it.
// Then it deletes the table if only an empty FORWARD chain with policy accept is
// left: the first of cnibox's rules made that chain.
func (t *nftFilter) removeUnused(ctx context.Context, admin string) error {
	st, err := t.Read(ctx, admin)
	if err != nil {
		return err
	}
	if c := st.Chains[admin]; c != nil && len(c.Rules) == 0 {
		_, err := t.Commit(ctx, st, []Op{{Kind: deleteChain, Chain: admin}})
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if st, err = t.Read(ctx, admin); err != nil {
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
	conn, err := t.NFT.Conn()
	if err != nil {
		return err
	}
	err = conn.Commit(ctx, st.generation, t.table.Message(unix.NFT_MSG_DELTABLE, 0))
	if errors.Is(err, unix.ERESTART) || errors.Is(err, unix.ENOENT) {
		return nil // another program changes the table, so keep it
	}
	return t.describe(err)
}

// chainNames lists the table's chains.
func (t *nftFilter) chainNames(ctx context.Context) ([]string, error) {
	m := t.table.ChainMessage(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, "")
	names, err := nft.List(ctx, t.NFT, m, func(attrs []byte) (string, bool, error) {
		c, _, err := decodeBaseChain(t.table.Family, attrs)
		return c.Name, c.Table == t.table, err // a kernel before 6.3 also lists the chains of other tables
	})
	return names, t.describe(err)
}
