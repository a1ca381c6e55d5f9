package refplugins

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// flanneld v0.28 masquerades in the chain FLANNEL-POSTRTG and accepts forwarded
// packets in FLANNEL-FWD, with either backend of iptables. With EnableNFTables
// it has the tables flannel-ipv4 and flannel-ipv6.

// flannelChain is a chain of flanneld and the chain that jumps to it.
type flannelChain struct {
	family             byte
	table, entry, name string
}

func flannelChains() []flannelChain {
	var all []flannelChain
	for _, f := range bothFamilies() {
		all = append(all, flannelChain{f, "nat", "POSTROUTING", "FLANNEL-POSTRTG"}, flannelChain{f, "filter", "FORWARD", "FLANNEL-FWD"})
	}
	return all
}

func flannelTables() []nft.Table {
	return []nft.Table{{Family: unix.NFPROTO_IPV4, Name: "flannel-ipv4"}, {Family: unix.NFPROTO_IPV6, Name: "flannel-ipv6"}}
}

func (c *flannelChain) inLegacy() bool {
	return iptables.IsLegacyLoaded(c.family, c.table) && iptables.LegacyMentions(c.family, c.table, c.name)
}

// Flannel lists the chains and tables of flanneld.
func (n *Leftovers) Flannel(ctx context.Context) ([]string, error) {
	var all []string
	for _, c := range flannelChains() {
		t := iptablesTable(c.family, c.table)
		there, err := n.NFT.HasChain(ctx, t, c.name)
		if err != nil && !isWithoutNFT(err) {
			return nil, nlconn.Explain(err, fmt.Sprintf("look for chain %s in nftables table %s", c.name, t))
		}
		if there {
			all = append(all, fmt.Sprintf("chain %s of nftables table %s", c.name, t))
		}
		if c.inLegacy() {
			l := &iptables.Legacy{Family: c.family}
			all = append(all, fmt.Sprintf("chain %s of %s's table %s", c.name, l.Program(), c.table))
		}
	}
	for _, t := range flannelTables() {
		names, err := n.NFT.Tables(ctx, t.Family)
		if err != nil && !isWithoutNFT(err) {
			return nil, nlconn.Explain(err, "list nftables tables")
		}
		if slices.Contains(names, t.Name) {
			all = append(all, "nftables table "+t.String())
		}
	}
	return all, nil
}

// RemoveFlannel removes the chains and tables of flanneld, and the jumps to the
// chains. flanneld must not run: it makes them again every few seconds.
func (n *Leftovers) RemoveFlannel(ctx context.Context) error {
	var errs []error
	for _, c := range flannelChains() {
		errs = append(errs, removeChain(ctx, n.NFT, iptablesTable(c.family, c.table), c.entry, c.name, func(*rule) bool { return true }))
		if !c.inLegacy() {
			continue
		}
		errs = append(errs, n.removeLegacyChain(ctx, c.family, c.table, c.entry, c.name, func(netip.Addr) bool { return true }))
	}
	for _, t := range flannelTables() {
		errs = append(errs, removeListed(ctx, n.NFT, t, func() ([]nlconn.Message, error) {
			names, err := n.NFT.Tables(ctx, t.Family)
			if err != nil || !slices.Contains(names, t.Name) {
				return nil, err
			}
			return []nlconn.Message{t.Message(unix.NFT_MSG_DELTABLE, 0)}, nil
		}))
	}
	return errors.Join(errs...)
}
