package nft

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HeldChain is a chain as the kernel reports it, usually of another program.
type HeldChain struct {
	Table Table
	Name  string
	// IsBase reports whether the chain is on a hook. Kind is its type, Priority its order on
	// the hook, and Devices are those of a chain of the family netdev. Drops reports whether
	// its policy is drop.
	IsBase   bool
	Kind     string
	Hook     uint32
	Priority int32
	Devices  []string
	Drops    bool
	// Uses counts the chain's rules, and for a chain that is not on a hook also what refers to it.
	Uses uint32
}

// String returns family, table and chain: "inet filter forward".
func (c *HeldChain) String() string {
	return Table{Family: c.Table.Family, Name: nlconn.Printable(c.Table.Name)}.String() + " " + nlconn.Printable(c.Name)
}

// Chain reads a chain without its rules. It returns nil if the chain is absent.
func (c *Client) Chain(ctx context.Context, t Table, name string) (*HeldChain, error) {
	chain, _, err := Get(ctx, c, t.ChainMessage(unix.NFT_MSG_GETCHAIN, 0, name), func(attrs []byte) (*HeldChain, error) {
		return decodeChain(t.Family, attrs)
	})
	return chain, err
}

// Chains lists the chains of a family that wanted accepts.
func (c *Client) Chains(ctx context.Context, family byte, wanted func(*HeldChain) bool) ([]*HeldChain, error) {
	all, err := List(ctx, c, Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family), func(attrs []byte) (*HeldChain, bool, error) {
		chain, err := decodeChain(family, attrs)
		return chain, wanted(chain), err
	})
	return all, nlconn.Explain(err, "list nftables chains")
}

// HasChain reports whether a table has a chain.
func (c *Client) HasChain(ctx context.Context, t Table, chain string) (bool, error) {
	return c.Exists(ctx, t.ChainMessage(unix.NFT_MSG_GETCHAIN, 0, chain))
}

// Tables lists the names of the namespace's nftables tables of one family.
func (c *Client) Tables(ctx context.Context, family byte) ([]string, error) {
	m := Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, family)
	return List(ctx, c, m, func(attrs []byte) (string, bool, error) {
		name, err := nlconn.Find(attrs, unix.NFTA_TABLE_NAME)
		return nlconn.Text(name), true, err
	})
}

// nftaHookDevs is NFTA_HOOK_DEVS of linux/netfilter/nf_tables.h.
const nftaHookDevs = 4

// decodeChain reads the attributes of one NFT_MSG_NEWCHAIN.
func decodeChain(family byte, attrs []byte) (*HeldChain, error) {
	c := &HeldChain{Table: Table{Family: family}}
	return c, nlconn.ReadAttrs(attrs, []nlconn.Attr{
		{Kind: unix.NFTA_CHAIN_TABLE, At: &c.Table.Name},
		{Kind: unix.NFTA_CHAIN_NAME, At: &c.Name},
		{Kind: unix.NFTA_CHAIN_TYPE, At: &c.Kind},
		{Kind: unix.NFTA_CHAIN_USE, At: (*nlconn.BigEndian32)(&c.Uses)},
		{Kind: unix.NFTA_CHAIN_POLICY, At: func(v []byte) error {
			c.Drops = nlconn.Net32(v) == VerdictDrop
			return nil
		}},
		{Kind: unix.NFTA_CHAIN_HOOK, At: func(v []byte) error {
			c.IsBase = true
			return nlconn.ReadAttrs(v, []nlconn.Attr{
				{Kind: unix.NFTA_HOOK_HOOKNUM, At: (*nlconn.BigEndian32)(&c.Hook)},
				{Kind: unix.NFTA_HOOK_PRIORITY, At: func(v []byte) error {
					c.Priority = int32(nlconn.Net32(v))
					return nil
				}},
				{Kind: unix.NFTA_HOOK_DEV, At: func(v []byte) error {
					c.Devices = append(c.Devices, nlconn.Text(v))
					return nil
				}},
				{Kind: nftaHookDevs, At: func(v []byte) error {
					return nlconn.EachAttr(v, func(_ uint16, v []byte) error {
						c.Devices = append(c.Devices, nlconn.Text(v))
						return nil
					})
				}},
			})
		}},
	})
}
