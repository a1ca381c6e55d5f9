package nft

import (
	"context"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HasChain reports whether a table has a chain.
func (c *Client) HasChain(ctx context.Context, t Table, chain string) (bool, error) {
	conn, err := c.Conn()
	if err != nil {
		return false, err
	}
	m, err := NewMessage(unix.NFT_MSG_GETCHAIN, 0, t.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_CHAIN_TABLE, t.Name)
		ae.String(unix.NFTA_CHAIN_NAME, chain)
		return nil
	})
	if err != nil {
		return false, err
	}
	err = conn.Get(ctx, m, func([]byte) {})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Tables lists the names of the namespace's nftables tables of one family.
func (c *Client) Tables(ctx context.Context, family byte) ([]string, error) {
	conn, err := c.Conn()
	if err != nil {
		return nil, err
	}
	m := Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, family)
	var names []string
	var damaged error
	err = conn.List(ctx, m, func() { names, damaged = nil, nil }, func(attrs []byte) {
		damaged = errors.Join(damaged, EachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
			if ad.Type() == unix.NFTA_TABLE_NAME {
				names = append(names, nlconn.UntilNUL(ad.Bytes()))
			}
			return nil
		}))
	})
	return names, errors.Join(err, damaged)
}

// DeleteChain returns the request that deletes a chain.
func (t Table) DeleteChain(chain string) (nlconn.Message, error) {
	return NewMessage(unix.NFT_MSG_DELCHAIN, 0, t.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_CHAIN_TABLE, t.Name)
		ae.String(unix.NFTA_CHAIN_NAME, chain)
		return nil
	})
}
