// Package refplugins finds, lists and removes the packet filter rules that the
// reference plugins left, of both backends.
package refplugins

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The reference plugins are containernetworking/plugins v1.9.1. They leave rules
// in nftables, by their nftables backend or by iptables-nft, and in the tables of
// iptables-legacy.

// Leftovers gives access to the rules that the reference plugins left in the
// namespace.
type Leftovers struct {
	NFT *nft.Client
	// IPTables is nil if iptables-legacy's programs cannot be run.
	IPTables iptables.Runner
}

// Attachment names an attachment that the reference plugins made.
type Attachment struct {
	Network, ContainerID, IfName string
	// Addresses are the known addresses of the attachment. A rule that names an
	// address is removed only if it is one of them. If there are none, all rules
	// of the container are removed.
	Addresses []netip.Addr
	// Others are the addresses of the container's other attachments. The
	// reference plugins name some rules only by container.
	Others []netip.Addr
	// Shares reports whether one of the other attachments has the same network. The
	// iptables backends use one chain for both.
	Shares bool
}

// owns reports whether a rule for an address belongs to the attachment.
func (f *Attachment) owns(a netip.Addr) bool {
	if slices.Contains(f.Others, a) {
		return false
	}
	return len(f.Addresses) == 0 || slices.Contains(f.Addresses, a)
}

// Has reports whether rules of the reference's bridge, ptp or portmap for the
// attachment may exist. It is fast if there are none.
func (n *Leftovers) Has(ctx context.Context, f Attachment) (bool, error) {
	if n.hasLegacy() {
		return true, nil
	}
	masquerade := iptablesChain(masqueradePrefix, f.Network, f.ContainerID)
	hostPorts := iptablesChain(hostPortPrefix, f.Network, f.ContainerID)
	for _, c := range []struct {
		table nft.Table
		chain string
	}{
		{masqueradeTable(), "masq_checks"},
		{hostPortTable(unix.NFPROTO_IPV4), "hostports"},
		{hostPortTable(unix.NFPROTO_IPV6), "hostports"},
		{iptablesTable(unix.NFPROTO_IPV4, "nat"), masquerade},
		{iptablesTable(unix.NFPROTO_IPV6, "nat"), masquerade},
		{iptablesTable(unix.NFPROTO_IPV4, "nat"), hostPorts},
		{iptablesTable(unix.NFPROTO_IPV6, "nat"), hostPorts},
	} {
		there, err := n.NFT.HasChain(ctx, c.table, c.chain)
		switch {
		case isWithoutNFT(err):
			return false, nil
		case err != nil || there:
			return there, nlconn.Explain(err, fmt.Sprintf("look for chain %s in nftables table %s", c.chain, c.table))
		}
	}
	return false, nil
}

// isWithoutNFT reports whether an error means that the kernel has no nftables,
// and so no such rules.
func isWithoutNFT(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// digest returns the first characters of the hexadecimal SHA-512 of a text. The
// reference plugins make names in this way (pkg/utils).
func digest(text string, length int) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:])[:length]
}

// iptablesChain returns the name of the reference's iptables chain for a
// container. It has 28 characters.
func iptablesChain(prefix, network, containerID string) string {
	return prefix + digest(network+containerID, 28-len(prefix))
}

const (
	masqueradePrefix = "CNI-"
	hostPortPrefix   = "CNI-DN-"
	hostPortChain    = "CNI-HOSTPORT-DNAT"
	forwardChain     = "CNI-FORWARD"
)

// iptablesTable returns a table of iptables-nft.
func iptablesTable(family byte, name string) nft.Table { return nft.Table{Family: family, Name: name} }

func masqueradeTable() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: "cni_plugins_masquerade"}
}

func hostPortTable(family byte) nft.Table {
	return nft.Table{Family: family, Name: "cni_hostport"}
}

// bothFamilies returns the families for which iptables and ip6tables have tables.
func bothFamilies() []byte { return []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} }

// MasqueradeComment returns the prefix of the comments of an attachment's
// masquerade rules.
func (f *Attachment) MasqueradeComment() string {
	return masqueradeNetwork(f.Network) + digest(f.IfName+":"+f.ContainerID, 16)
}

// masqueradeNetwork returns the prefix of the comments of a network's masquerade
// rules.
func masqueradeNetwork(network string) string { return digest(network, 16) + "-" }

// RemoveMasquerade removes the rules that the reference's bridge and ptp made for
// ipMasq with either backend. The iptables backend does not record the interface
// name. A container's chain is deleted with the last rule that jumps to it.
func (n *Leftovers) RemoveMasquerade(ctx context.Context, f Attachment) error {
	chain := iptablesChain(masqueradePrefix, f.Network, f.ContainerID)
	errs := []error{removeRules(ctx, n.NFT, masqueradeTable(), []string{"masq_checks"}, func(r *rule) bool {
		return strings.HasPrefix(r.Comment, f.MasqueradeComment())
	})}
	for _, family := range bothFamilies() {
		errs = append(errs,
			removeChain(ctx, n.NFT, iptablesTable(family, "nat"), "POSTROUTING", chain, func(r *rule) bool {
				return f.owns(r.source.Addr())
			}),
			n.removeLegacyChain(ctx, family, "nat", "POSTROUTING", chain, f.owns))
	}
	return errors.Join(errs...)
}

// RemoveHostPorts removes the rules that the reference's portmap made with either
// backend.
func (n *Leftovers) RemoveHostPorts(ctx context.Context, f Attachment) error {
	chain := iptablesChain(hostPortPrefix, f.Network, f.ContainerID)
	var errs []error
	for _, family := range bothFamilies() {
		errs = append(errs,
			removeRules(ctx, n.NFT, hostPortTable(family), []string{"hostports", "hostip_hostports", "masquerading"}, func(r *rule) bool {
				return r.Comment == f.ContainerID && f.owns(r.target())
			}),
			removeChain(ctx, n.NFT, iptablesTable(family, "nat"), hostPortChain, chain, func(*rule) bool {
				return !f.Shares
			}),
			n.removeLegacyChain(ctx, family, "nat", hostPortChain, chain, func(netip.Addr) bool { return !f.Shares }))
	}
	return errors.Join(errs...)
}

// HasForward reports whether rules of the reference's firewall may exist: its
// chain, or a firewalld that may have rules for addresses. It is fast if there
// are none.
func (n *Leftovers) HasForward(ctx context.Context) (bool, error) {
	if n.IPTables != nil && slices.ContainsFunc(bothFamilies(), func(f byte) bool {
		return iptables.IsLegacyLoaded(f, "filter") && iptables.LegacyMentions(f, "filter", forwardChain)
	}) {
		return true, nil
	}
	tables, err := n.NFT.Tables(ctx, unix.NFPROTO_UNSPEC)
	if isWithoutNFT(err) {
		return false, nil
	}
	there := slices.Contains(tables, iptables.FirewalldTable)
	if slices.Contains(tables, "filter") {
		for _, family := range bothFamilies() {
			for _, chain := range []string{forwardChain, iptables.FirewalldChain} {
				if err == nil && !there {
					there, err = n.NFT.HasChain(ctx, iptablesTable(family, "filter"), chain)
				}
			}
		}
	}
	return there, nlconn.Explain(err, "look for rules of other plugins")
}

// RemoveForward removes the two rules that the reference's firewall made in
// CNI-FORWARD for each of the addresses. The rules name only an address, so the
// caller must make sure that the addresses are not in use.
func (n *Leftovers) RemoveForward(ctx context.Context, addresses []netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	var errs []error
	for _, family := range bothFamilies() {
		errs = append(errs, removeRules(ctx, n.NFT, iptablesTable(family, "filter"), []string{forwardChain}, func(r *rule) bool {
			return slices.ContainsFunc(addresses, r.forwards)
		}), n.removeLegacyForward(ctx, family, addresses))
	}
	return errors.Join(errs...)
}

// removeRules deletes the rules in some chains of a table for which chosen
// returns true.
func removeRules(ctx context.Context, c *nft.Client, t nft.Table, chains []string, chosen func(*rule) bool) error {
	removed := false
	err := removeListed(ctx, c, t, func() ([]nlconn.Message, error) {
		var msgs []nlconn.Message
		rules, err := readRules(ctx, c, t, chains...)
		for i := range rules {
			if err == nil && chosen(&rules[i]) {
				msgs = append(msgs, rules[i].Deletion())
			}
		}
		removed = removed || len(msgs) > 0
		return msgs, err
	})
	if err != nil || !removed || !strings.HasPrefix(t.Name, "cni_") {
		return err
	}
	return removeTable(ctx, c, t, chains)
}

// removeTable deletes a table of the reference plugins if its chains for
// attachments have no rules. An ADD of the reference plugins makes the table
// again in one transaction. If an ADD changes the table at the same time,
// removeTable does nothing.
func removeTable(ctx context.Context, c *nft.Client, t nft.Table, chains []string) error {
	conn, err := c.Conn()
	if err != nil {
		return err
	}
	generation, err := conn.Generation(ctx)
	if err != nil {
		return err
	}
	rules, err := readRules(ctx, c, t, chains...)
	if err != nil || len(rules) > 0 {
		return err
	}
	_, err = c.RemoveUnchanged(ctx, t, generation)
	return nlconn.Explain(err, fmt.Sprintf("remove nftables table %s", t))
}

// removeChain deletes the rules of an entry chain that jump to a container's
// chain and for which chosen returns true. With the last of them it deletes the
// chain.
func removeChain(ctx context.Context, c *nft.Client, t nft.Table, entry, chain string, chosen func(*rule) bool) error {
	from := []string{entry}
	return removeListed(ctx, c, t, func() ([]nlconn.Message, error) {
		there, err := c.HasChain(ctx, t, chain)
		if err != nil || !there {
			return nil, err
		}
		rules, err := readRules(ctx, c, t, from...)
		if err != nil {
			return nil, err
		}
		from = nil // if the chain is still in use, another chain than entry jumps to it
		var msgs []nlconn.Message
		left := false
		for i := range rules {
			r := &rules[i]
			if r.jump != chain {
				continue
			}
			if r.Chain == entry && !chosen(r) {
				left = true
				continue
			}
			msgs = append(msgs, r.Deletion())
		}
		if !left {
			msgs = append(msgs, t.ChainMessage(unix.NFT_MSG_DELCHAIN, 0, chain))
		}
		return msgs, nil
	})
}

// removeListed commits the messages that plan returns. It calls plan again if
// something changed at the same time.
func removeListed(ctx context.Context, c *nft.Client, t nft.Table, plan func() ([]nlconn.Message, error)) error {
	conn, err := c.Conn()
	if err != nil {
		return err
	}
	for range nft.Tries {
		msgs, err := plan()
		if isWithoutNFT(err) {
			return nil
		}
		if err == nil && len(msgs) > 0 {
			err = conn.Commit(ctx, 0, msgs...)
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
			return nlconn.Explain(err, fmt.Sprintf("remove rules of other plugins from nftables table %s", t))
		}
	}
	return fmt.Errorf("remove rules of other plugins from nftables table %s: %w: it is being changed", t, nlconn.ErrBusy)
}
