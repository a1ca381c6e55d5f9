package leftovers

import (
	"context"
	"errors"
	"fmt"
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
type flannelChain struct{ table, entry, name string }

func flannelChains() []flannelChain {
	return []flannelChain{{"nat", "POSTROUTING", "FLANNEL-POSTRTG"}, {"filter", "FORWARD", "FLANNEL-FWD"}}
}

// flannelTables lists flanneld's own tables that exist.
func (n *Leftovers) flannelTables(ctx context.Context) (all []nft.Table, err error) {
	for _, t := range []nft.Table{{Family: unix.NFPROTO_IPV4, Name: "flannel-ipv4"}, {Family: unix.NFPROTO_IPV6, Name: "flannel-ipv6"}} {
		names, err := n.NFT.Tables(ctx, t.Family)
		if err != nil && !isWithoutTables(err) {
			return nil, nlconn.Explain(err, "list nftables tables")
		}
		if slices.Contains(names, t.Name) {
			all = append(all, t)
		}
	}
	return all, nil
}

// Flannel lists the chains and tables of flanneld.
func (n *Leftovers) Flannel(ctx context.Context) ([]string, error) {
	var all []string
	for _, c := range flannelChains() {
		for _, t := range n.Named(c.table, iptables.Families(), c.name) {
			has, err := t.Has(ctx, c.name)
			if err != nil && !isWithoutTables(err) {
				return nil, err
			}
			if has {
				all = append(all, fmt.Sprintf("chain %s of %s", c.name, t))
			}
		}
	}
	own, err := n.flannelTables(ctx)
	for _, t := range own {
		all = append(all, n.Native(t).String())
	}
	return all, err
}

// RemoveFlannel removes the chains and tables of flanneld, and the jumps to the
// chains. flanneld must not run: it makes them again every few seconds.
func (n *Leftovers) RemoveFlannel(ctx context.Context) error {
	var errs []error
	for _, c := range flannelChains() {
		for _, t := range n.Named(c.table, iptables.Families(), c.name) {
			errs = append(errs, removeChain(ctx, t, c.entry, c.name, func(*iptables.HeldRule) bool { return true }))
		}
	}
	own, err := n.flannelTables(ctx)
	for _, t := range own {
		errs = append(errs, change(ctx, n.Native(t), nil, func(*iptables.State) []iptables.Op { return []iptables.Op{{Kind: iptables.DeleteTable}} }))
	}
	return errors.Join(append(errs, err)...)
}
