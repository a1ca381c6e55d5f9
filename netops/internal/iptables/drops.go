package iptables

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// BaseChain is an nftables chain on a hook.
type BaseChain struct {
	Table nft.Table
	Name  string
	// Kind is nftables' type of the chain, Hook its hook, and Priority its order on the hook.
	Kind     string
	Hook     uint32
	Priority int32
	// Devices are those of a chain of the family netdev.
	Devices []string
	// Drops reports whether the chain's policy is drop.
	Drops bool
}

// String returns family, table and chain: "inet filter forward".
func (c BaseChain) String() string {
	return nft.Table{Family: c.Table.Family, Name: nlconn.Printable(c.Table.Name)}.String() + " " + nlconn.Printable(c.Name)
}

// BaseChains lists the nftables chains of some families on the hooks for which on returns true.
func (t *Tables) BaseChains(ctx context.Context, on func(family byte, hook uint32) bool, families ...byte) ([]BaseChain, error) {
	var all []BaseChain
	for _, family := range families {
		m := nft.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family)
		some, err := nft.List(ctx, t.NFT, m, func(attrs []byte) (BaseChain, bool, error) {
			c, isBase, err := decodeBaseChain(family, attrs)
			return c, isBase && on(family, c.Hook), err
		})
		if err != nil {
			return nil, nlconn.Explain(err, "list nftables chains")
		}
		all = append(all, some...)
	}
	return all, nil
}

// ForwardChains lists the nftables chains on the forward hook.
func (t *Tables) ForwardChains(ctx context.Context) ([]BaseChain, error) {
	forward := func(_ byte, hook uint32) bool { return hook == unix.NF_INET_FORWARD }
	return t.BaseChains(ctx, forward, unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6)
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

// decodeBaseChain reads the attributes of one NFT_MSG_NEWCHAIN. isBase is false for a chain without
// a hook.
func decodeBaseChain(family byte, attrs []byte) (c BaseChain, isBase bool, err error) {
	c.Table.Family = family
	err = nlconn.EachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.Table.Name = nlconn.Text(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nlconn.Text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.Kind = nlconn.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			c.Drops = nlconn.Net32(v) == nft.VerdictDrop
		case unix.NFTA_CHAIN_HOOK:
			isBase = true
			return nlconn.EachAttr(v, c.decodeHook)
		}
		return nil
	})
	return c, isBase, err
}

func (c *BaseChain) decodeHook(kind uint16, v []byte) error {
	switch kind {
	case unix.NFTA_HOOK_HOOKNUM:
		c.Hook = nlconn.Net32(v)
	case unix.NFTA_HOOK_PRIORITY:
		c.Priority = int32(nlconn.Net32(v))
	case unix.NFTA_HOOK_DEV:
		c.Devices = append(c.Devices, nlconn.Text(v))
	case nftaHookDevs:
		return nlconn.EachAttr(v, func(_ uint16, v []byte) error {
			c.Devices = append(c.Devices, nlconn.Text(v))
			return nil
		})
	}
	return nil
}

// nftaHookDevs is NFTA_HOOK_DEVS of linux/netfilter/nf_tables.h.
const nftaHookDevs = 4
