package iptables

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// BaseChain is an nftables chain on the forward hook.
type BaseChain struct {
	Table nft.Table
	Name  string
	// Drops reports whether the chain's policy is drop.
	Drops bool
}

// String returns family, table and chain: "inet filter forward".
func (c BaseChain) String() string {
	return nft.Table{Family: c.Table.Family, Name: nlconn.Printable(c.Table.Name)}.String() + " " + nlconn.Printable(c.Name)
}

// ForwardChains lists the nftables chains on the forward hook.
func (t *Tables) ForwardChains(ctx context.Context) ([]BaseChain, error) {
	var all []BaseChain
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		m := nft.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family)
		some, err := nft.List(ctx, t.NFT, m, func(attrs []byte) (BaseChain, bool, error) {
			c, err := decodeBaseChain(attrs)
			return BaseChain{nft.Table{Family: family, Name: c.table}, c.name, c.drops}, c.hook == unix.NF_INET_FORWARD, err
		})
		if err != nil {
			return nil, nlconn.Explain(err, "list nftables chains")
		}
		all = append(all, some...)
	}
	return all, nil
}

// ForwardDrops lists the nftables chains on the forward hook with policy drop
// ("inet filter forward"), except iptables' own chains. Only the owner of such a
// chain can make it accept a packet.
func (t *Tables) ForwardDrops(ctx context.Context) ([]string, error) {
	all, err := t.ForwardChains(ctx)
	var names []string
	for _, c := range all {
		isIPTables := c.Table.Family != unix.NFPROTO_INET && c.Table.Name == "filter" && c.Name == ForwardChain
		if c.Drops && !isIPTables {
			names = append(names, c.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// baseChain has the fields of a chain that ForwardChains needs.
type baseChain struct {
	table, name string
	hook        int // -1 for a chain without a hook
	drops       bool
}

// decodeBaseChain reads the attributes of one NFT_MSG_NEWCHAIN.
func decodeBaseChain(attrs []byte) (baseChain, error) {
	var c baseChain
	hook, policy := nlconn.BigEndian32(1<<32-1), nlconn.BigEndian32(nft.VerdictAccept)
	err := nlconn.ReadAttrs(attrs, []nlconn.Attr{
		{Kind: unix.NFTA_CHAIN_TABLE, At: &c.table}, {Kind: unix.NFTA_CHAIN_NAME, At: &c.name}, {Kind: unix.NFTA_CHAIN_POLICY, At: &policy},
		{Kind: unix.NFTA_CHAIN_HOOK, At: []nlconn.Attr{{Kind: unix.NFTA_HOOK_HOOKNUM, At: &hook}}},
	})
	c.hook, c.drops = int(int32(hook)), policy == nft.VerdictDrop
	return c, err
}
