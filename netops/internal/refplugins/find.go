package refplugins

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// MissingMasquerade lists the attachment's addresses that no rule of the
// reference's bridge or ptp masquerades.
func (n *Leftovers) MissingMasquerade(ctx context.Context, f Attachment) ([]netip.Addr, error) {
	rules, err := readRules(ctx, n.NFT, masqueradeTable(), "masq_checks")
	if err != nil {
		return nil, nlconn.Explain(err, "read rules of other plugins")
	}
	rules = slices.DeleteFunc(rules, func(r rule) bool { return !strings.HasPrefix(r.Comment, f.MasqueradeComment()) })
	chain := iptablesChain(masqueradePrefix, f.Network, f.ContainerID)
	for _, family := range bothFamilies() {
		jumps, err := readRules(ctx, n.NFT, iptablesTable(family, "nat"), "POSTROUTING")
		if err != nil {
			return nil, nlconn.Explain(err, "read rules of other plugins")
		}
		rules = append(rules, slices.DeleteFunc(jumps, func(r rule) bool { return r.jump != chain })...)
	}
	var missing []netip.Addr
	for _, a := range f.Addresses {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.source == netip.PrefixFrom(a, a.BitLen()) }) {
			missing = append(missing, a)
		}
	}
	return missing, nil
}

// HostPorts counts the ports of the node that the reference's portmap translates
// to the attachment's addresses of one family. It reads the rules of both
// backends.
func (n *Leftovers) HostPorts(ctx context.Context, f Attachment, is6 bool) (int, error) {
	family := byte(unix.NFPROTO_IPV4)
	if is6 {
		family = unix.NFPROTO_IPV6
	}
	rules, err := readRules(ctx, n.NFT, hostPortTable(family), "hostports", "hostip_hostports")
	if err != nil {
		return 0, nlconn.Explain(err, "read rules of other plugins")
	}
	ports := 0
	for i := range rules {
		if rules[i].Comment == f.ContainerID && f.owns(rules[i].target()) {
			ports++
		}
	}
	rules, err = readRules(ctx, n.NFT, iptablesTable(family, "nat"), iptablesChain(hostPortPrefix, f.Network, f.ContainerID))
	if err != nil {
		return 0, nlconn.Explain(err, "read rules of other plugins")
	}
	for i := range rules {
		if rules[i].jump == "" { // the other rules mark the packet
			ports++
		}
	}
	return ports, nil
}

// MissingForward lists the addresses that lack one of the two rules that the
// reference's firewall makes for them in CNI-FORWARD.
func (n *Leftovers) MissingForward(ctx context.Context, addresses []netip.Addr) ([]netip.Addr, error) {
	var rules []rule
	for _, family := range bothFamilies() {
		some, err := readRules(ctx, n.NFT, iptablesTable(family, "filter"), forwardChain)
		if err != nil {
			return nil, nlconn.Explain(err, "read rules of other plugins")
		}
		rules = append(rules, some...)
	}
	var missing []netip.Addr
	for _, a := range addresses {
		found := 0
		for i := range rules {
			if rules[i].forwards(a) {
				found++
			}
		}
		if found < 2 {
			missing = append(missing, a)
		}
	}
	return missing, nil
}

// CollectMasquerade removes the masquerade rules that the reference's bridge and
// ptp made on a network for attachments that are not valid.
func (n *Leftovers) CollectMasquerade(ctx context.Context, network string, valid []Attachment) error {
	isValid := func(r *rule) bool {
		return slices.ContainsFunc(valid, func(f Attachment) bool { return strings.HasPrefix(r.Comment, f.MasqueradeComment()) })
	}
	return errors.Join(
		removeRules(ctx, n.NFT, masqueradeTable(), []string{"masq_checks"}, func(r *rule) bool {
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
	var errs []error
	for _, family := range bothFamilies() {
		t := iptablesTable(family, "nat")
		errs = append(errs, n.collectLegacyChains(ctx, family, entry, prefix, network, valid))
		rules, err := readRules(ctx, n.NFT, t, entry)
		if err != nil {
			errs = append(errs, nlconn.Explain(err, fmt.Sprintf("read rules of other plugins in nftables table %s", t)))
			continue
		}
		for i := range rules {
			of, id, ok := parseComment(rules[i].Comment)
			if !ok || of != network || rules[i].jump != iptablesChain(prefix, network, id) {
				continue
			}
			if !isValidContainer(valid, id) {
				errs = append(errs, removeChain(ctx, n.NFT, t, entry, rules[i].jump, func(*rule) bool { return true }))
			}
		}
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
