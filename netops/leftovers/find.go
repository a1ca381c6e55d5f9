package leftovers

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// rules reads the rules of some chains of a table of nftables. An absent table or chain has no rules.
func (n *Leftovers) rules(ctx context.Context, t nft.Table, chains ...string) ([]*iptables.HeldRule, error) {
	var all []*iptables.HeldRule
	for _, chain := range chains {
		rules, err := nft.Rules(ctx, n.NFT, t, chain, iptables.ReadRule)
		if err != nil {
			return nil, nlconn.Explain(err, "read rules of other plugins")
		}
		all = append(all, rules...)
	}
	return all, nil
}

// MissingMasquerade lists the attachment's addresses that no rule of the
// reference's bridge or ptp masquerades.
func (n *Leftovers) MissingMasquerade(ctx context.Context, f Attachment) ([]netip.Addr, error) {
	rules, err := n.rules(ctx, masqueradeTable(), "masq_checks")
	if err != nil {
		return nil, err
	}
	rules = slices.DeleteFunc(rules, func(r *iptables.HeldRule) bool { return !strings.HasPrefix(r.Comment, masqueradeComment(&f)) })
	chain := iptablesChain(masqueradePrefix, f.Network, f.ContainerID)
	for _, family := range iptables.Families() {
		jumps, err := n.rules(ctx, nft.Table{Family: family, Name: "nat"}, "POSTROUTING")
		if err != nil {
			return nil, err
		}
		rules = append(rules, slices.DeleteFunc(jumps, func(r *iptables.HeldRule) bool { return r.Jump != chain })...)
	}
	return slices.DeleteFunc(slices.Clone(f.Addresses), func(a netip.Addr) bool {
		return slices.ContainsFunc(rules, func(r *iptables.HeldRule) bool { return r.Source == netip.PrefixFrom(a, a.BitLen()) })
	}), nil
}

// HostPorts counts the ports of the node that the reference's portmap translates
// to the attachment's addresses of one family. It reads the rules of its nftables
// backend and of iptables-nft.
func (n *Leftovers) HostPorts(ctx context.Context, f Attachment, is6 bool) (int, error) {
	family := iptables.FamilyOf(is6)
	native, err := n.rules(ctx, hostPortTable(family), "hostports", "hostip_hostports")
	if err != nil {
		return 0, err
	}
	chain, err := n.rules(ctx, nft.Table{Family: family, Name: "nat"}, iptablesChain(hostPortPrefix, f.Network, f.ContainerID))
	ports := 0
	for _, r := range native {
		if r.Comment == f.ContainerID && owns(&f, target(r)) {
			ports++
		}
	}
	for _, r := range chain {
		if r.Jump == "" { // the other rules mark the packet
			ports++
		}
	}
	return ports, err
}

// MissingForward lists the addresses that lack one of the two rules that the
// reference's firewall makes for them in CNI-FORWARD.
func (n *Leftovers) MissingForward(ctx context.Context, addresses []netip.Addr) ([]netip.Addr, error) {
	var rules []*iptables.HeldRule
	for _, family := range iptables.Families() {
		some, err := n.rules(ctx, nft.Table{Family: family, Name: "filter"}, forwardChain)
		if err != nil {
			return nil, err
		}
		rules = append(rules, some...)
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool {
		found := 0
		for _, r := range rules {
			if forwards(r, a) {
				found++
			}
		}
		return found >= 2
	}), nil
}

// CollectMasquerade removes the masquerade rules that the reference's bridge and
// ptp made on a network for attachments that are not valid.
func (n *Leftovers) CollectMasquerade(ctx context.Context, network string, valid []Attachment) error {
	isValid := func(r *iptables.HeldRule) bool {
		return slices.ContainsFunc(valid, func(f Attachment) bool { return strings.HasPrefix(r.Comment, masqueradeComment(&f)) })
	}
	return errors.Join(
		n.removeNative(ctx, masqueradeTable(), []string{"masq_checks"}, func(r *iptables.HeldRule) bool {
			return strings.HasPrefix(r.Comment, masqueradeNetwork(network)) && !isValid(r)
		}),
		n.collectChains(ctx, "POSTROUTING", masqueradePrefix, network, valid),
	)
}

// CollectHostPorts removes the rules of the iptables backend of the reference's
// portmap in the same way. The rules of its nftables backend name the container
// but not the network, so only the DEL of an attachment removes them.
func (n *Leftovers) CollectHostPorts(ctx context.Context, network string, valid []Attachment) error {
	return n.collectChains(ctx, hostPortChain, hostPortPrefix, network, valid)
}

// collectChains removes the chains of a network's containers that are not valid.
// The comment of the jump to a chain names the network and the container. The
// chain's name, which is a digest of both, verifies the comment.
func (n *Leftovers) collectChains(ctx context.Context, entry, prefix, network string, valid []Attachment) error {
	doomed := func(st *iptables.State) (chains []string) {
		for _, r := range st.Rules(entry) {
			of, id, ok := parseComment(r.Comment)
			isValid := slices.ContainsFunc(valid, func(f Attachment) bool { return f.ContainerID == id })
			if ok && of == network && !isValid && r.Jump == iptablesChain(prefix, network, id) && !slices.Contains(chains, r.Jump) {
				chains = append(chains, r.Jump)
			}
		}
		return chains
	}
	var errs []error
	for _, t := range n.Named("nat", iptables.Families(), prefix) {
		errs = append(errs, removeChains(ctx, t, []string{entry}, doomed, func(*iptables.HeldRule) bool { return true }))
	}
	return errors.Join(errs...)
}

// parseComment reads `name: "net1" id: "c1"`. In portmap's comments `dnat `
// precedes it.
func parseComment(text string) (network, containerID string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(text, "dnat "), "name: ")
	if !ok {
		return "", "", false
	}
	name, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return "", "", false
	}
	quotedID, ok := strings.CutPrefix(rest[len(name):], " id: ")
	if !ok {
		return "", "", false
	}
	network, err = strconv.Unquote(name)
	if err != nil {
		return "", "", false
	}
	containerID, err = strconv.Unquote(quotedID)
	return network, containerID, err == nil
}

// AddressDifference returns the difference that a container's address does not have a
// property which the reference gives it, for example "masqueraded".
func AddressDifference(ifName string, a netip.Addr, what string) netops.Difference {
	return netops.Difference{
		Object: &netops.Addr{In: netops.Container, Link: ifName, Address: netip.PrefixFrom(a, a.BitLen())},
		Want:   what, Have: "not " + what,
	}
}
