package nft

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HasChain reports whether a table has a chain.
func (c *Client) HasChain(ctx context.Context, t Table, chain string) (bool, error) {
	conn, err := c.Conn()
	if err != nil {
		return false, err
	}
	err = conn.Get(ctx, t.ChainMessage(unix.NFT_MSG_GETCHAIN, 0, chain), func([]byte) {})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Tables lists the names of the namespace's nftables tables of one family.
func (c *Client) Tables(ctx context.Context, family byte) ([]string, error) {
	m := Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, family)
	return List(ctx, c, m, func(attrs []byte) (string, bool, error) {
		name, err := nlconn.Find(attrs, unix.NFTA_TABLE_NAME)
		return nlconn.Text(name), true, err
	})
}
