package iptables

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// ForwardDrops lists the nftables chains on the forward hook with policy drop
// ("inet filter forward"), except iptables' own chains. Only the owner of such a
// chain can make it accept a packet.
func (t *Tables) ForwardDrops(ctx context.Context) ([]string, error) {
	conn, err := t.NFT.Conn()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		others := len(names)
		var damaged error
		m := nft.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family)
		err := conn.List(ctx, m, func() { names, damaged = names[:others], nil }, func(attrs []byte) {
			c, err := decodeBaseChain(attrs)
			damaged = errors.Join(damaged, err)
			isIPTables := family != unix.NFPROTO_INET && c.table == "filter" && c.name == ForwardChain
			if c.drops && c.hook == unix.NF_INET_FORWARD && !isIPTables {
				names = append(names, nft.Table{Family: family, Name: nlconn.Printable(c.table)}.String()+" "+nlconn.Printable(c.name))
			}
		})
		if err = errors.Join(err, damaged); err != nil {
			return nil, nlconn.Explain(err, "list nftables chains")
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// baseChain has the fields of a chain that ForwardDrops needs.
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
