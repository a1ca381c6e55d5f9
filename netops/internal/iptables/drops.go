package iptables

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// ForwardDrops lists the nftables chains on the forward hook with policy drop
// ("inet filter forward"), except iptables' own chains. Only the owner of such a
// chain can make it accept a packet.
func (t *Tables) ForwardDrops(ctx context.Context) ([]string, error) {
	var names []string
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		all, err := t.NFT.Chains(ctx, family, func(c *nft.HeldChain) bool {
			isIPTables := family != unix.NFPROTO_INET && c.Table.Name == "filter" && c.Name == ForwardChain
			return c.IsBase && c.Hook == unix.NF_INET_FORWARD && c.Drops && !isIPTables && c.Table != podtable.Table()
		})
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			names = append(names, c.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
