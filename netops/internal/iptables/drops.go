package iptables

import (
	"context"
	"errors"
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
	conn, err := t.NFT.Conn()
	if err != nil {
		return nil, err
	}
	var all []BaseChain
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		others := len(all)
		var damaged error
		m := nft.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family)
		err := conn.List(ctx, m, func() { all, damaged = all[:others], nil }, func(attrs []byte) {
			c, err := decodeBaseChain(attrs)
			damaged = errors.Join(damaged, err)
			if c.hook == unix.NF_INET_FORWARD {
				all = append(all, BaseChain{nft.Table{Family: family, Name: c.table}, c.name, c.drops})
			}
		})
		if err = errors.Join(err, damaged); err != nil {
			return nil, nlconn.Explain(err, "list nftables chains")
		}
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
	c := baseChain{hook: -1}
	err := nlconn.EachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.table = nlconn.Text(v)
		case unix.NFTA_CHAIN_NAME:
			c.name = nlconn.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			c.drops = nlconn.Net32(v) == nft.VerdictDrop
		case unix.NFTA_CHAIN_HOOK:
			hook, err := nlconn.Find(v, unix.NFTA_HOOK_HOOKNUM)
			if hook != nil {
				c.hook = int(nlconn.Net32(hook))
			}
			return err
		}
		return nil
	})
	return c, err
}
