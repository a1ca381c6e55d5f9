// Package refplugins is what the reference plugins left in the packet filter: it finds,
// lists and removes that, of either backend.
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

// What the reference plugins (containernetworking/plugins v1.9.1) leave in
// nftables, by their own backend and by iptables-nft, is read and removed here
// for attachments that they made; what is in tables of iptables-legacy too.

// Leftovers are what the reference plugins left in the namespace.
type Leftovers struct {
	NFT *nft.Client
	// IPTables is nil where iptables-legacy's programs cannot be run.
	IPTables iptables.Runner
}

// Attachment names an attachment that the reference plugins made.
type Attachment struct {
	Network, ContainerID, IfName string
	// Addresses are the attachment's, as far as they are known. What tells its
	// address is removed only if it is one of them; without any, whatever is
	// the container's.
	Addresses []netip.Addr
	// Others are addresses of the container's other attachments: names that
	// the reference gives by container do not tell these apart.
	Others []netip.Addr
	// Shares tells that one of these is of the same network, where the iptables
	// backends give both one chain.
	Shares bool
}

// owns tells whether what stands for an address is the attachment's.
func (f *Attachment) owns(a netip.Addr) bool {
	if slices.Contains(f.Others, a) {
		return false
	}
	return len(f.Addresses) == 0 || slices.Contains(f.Addresses, a)
}

// Has tells whether there is anything that the reference's
// bridge, ptp or portmap may have made for the attachment. It is quick where
// there is nothing.
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

// isWithoutNFT tells whether an error is that of a kernel without nftables,
// which holds nothing of the kind.
func isWithoutNFT(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// digest begins the hexadecimal SHA-512 of a text: how the reference plugins
// make names (pkg/utils).
func digest(text string, length int) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:])[:length]
}

// iptablesChain is an iptables chain of the reference's for a container: 28
// characters in all.
func iptablesChain(prefix, network, containerID string) string {
	return prefix + digest(network+containerID, 28-len(prefix))
}

const (
	masqueradePrefix = "CNI-"
	hostPortPrefix   = "CNI-DN-"
	hostPortChain    = "CNI-HOSTPORT-DNAT"
	forwardChain     = "CNI-FORWARD"
)

// iptablesTable is a table that iptables-nft keeps.
func iptablesTable(family byte, name string) nft.Table { return nft.Table{Family: family, Name: name} }

func masqueradeTable() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: "cni_plugins_masquerade"}
}

func hostPortTable(family byte) nft.Table {
	return nft.Table{Family: family, Name: "cni_hostport"}
}

// bothFamilies are those that iptables and ip6tables have tables of.
func bothFamilies() []byte { return []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} }

// MasqueradeComment begins the comments of an attachment's masquerade rules.
func (f *Attachment) MasqueradeComment() string {
	return masqueradeNetwork(f.Network) + digest(f.IfName+":"+f.ContainerID, 16)
}

// masqueradeNetwork begins those of a network.
func masqueradeNetwork(network string) string { return digest(network, 16) + "-" }

// RemoveMasquerade removes what the reference's bridge and ptp made for
// ipMasq with either backend. Their iptables backend knows no interface names:
// a container's chain goes with the last rule that leads to it.
func (n *Leftovers) RemoveMasquerade(ctx context.Context, f Attachment) error {
	chain := iptablesChain(masqueradePrefix, f.Network, f.ContainerID)
	errs := []error{removeRules(ctx, n.NFT, masqueradeTable(), []string{"masq_checks"}, func(r *rule) bool {
		return strings.HasPrefix(r.comment, f.MasqueradeComment())
	})}
	for _, family := range bothFamilies() {
		errs = append(errs,
			removeChain(ctx, n.NFT, iptablesTable(family, "nat"), "POSTROUTING", chain, func(r *rule) bool {
				return f.owns(r.source.Addr())
			}),
			n.removeLegacyChain(ctx, family, "POSTROUTING", chain, f.owns))
	}
	return errors.Join(errs...)
}

// RemoveHostPorts removes what the reference's portmap made with either
// backend.
func (n *Leftovers) RemoveHostPorts(ctx context.Context, f Attachment) error {
	chain := iptablesChain(hostPortPrefix, f.Network, f.ContainerID)
	var errs []error
	for _, family := range bothFamilies() {
		errs = append(errs,
			removeRules(ctx, n.NFT, hostPortTable(family), []string{"hostports", "hostip_hostports", "masquerading"}, func(r *rule) bool {
				return r.comment == f.ContainerID && f.owns(r.target())
			}),
			removeChain(ctx, n.NFT, iptablesTable(family, "nat"), hostPortChain, chain, func(*rule) bool {
				return !f.Shares
			}),
			n.removeLegacyChain(ctx, family, hostPortChain, chain, func(netip.Addr) bool { return !f.Shares }))
	}
	return errors.Join(errs...)
}

// HasForward tells whether there is anything that the reference's firewall
// may have made: its chain, or a firewalld that it told of addresses. It is quick
// where there is nothing.
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

// RemoveForward removes the two rules that the reference's firewall
// made in CNI-FORWARD for each of the addresses. They name nothing else: the
// caller makes sure that nobody else has these addresses now.
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

// removeRules deletes the rules of some chains of a table that are chosen.
func removeRules(ctx context.Context, c *nft.Client, t nft.Table, chains []string, chosen func(*rule) bool) error {
	removed := false
	err := removeListed(ctx, c, t, func() ([]nlconn.Message, error) {
		var msgs []nlconn.Message
		rules, err := readRules(ctx, c, t, chains...)
		for i := range rules {
			if err == nil && chosen(&rules[i]) {
				var m nlconn.Message
				m, err = rules[i].deletion()
				msgs = append(msgs, m)
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

// removeTable deletes a table of the reference's own when none of its
// chains for attachments has a rule any more. An ADD of the reference makes all
// of it again, in one transaction, and this one does nothing if that came between.
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

// removeChain deletes the rules of an entry chain that lead to a
// container's chain and are chosen, and with the last of them the chain.
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
		from = nil // if the chain turns out to be in use, another than entry leads to it
		var msgs []nlconn.Message
		left := false
		for i := range rules {
			r := &rules[i]
			if r.jump != chain {
				continue
			}
			if r.chain == entry && !chosen(r) {
				left = true
				continue
			}
			m, err := r.deletion()
			if err != nil {
				return nil, err
			}
			msgs = append(msgs, m)
		}
		if left {
			return msgs, nil
		}
		m, err := t.DeleteChain(chain)
		return append(msgs, m), err
	})
}

// removeListed commits what plan lists, again where something changed
// meanwhile.
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
