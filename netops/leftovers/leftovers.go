// Package leftovers finds, lists and removes the packet filter rules of the reference plugins and of flanneld, of all
// backends, and finds kube-proxy's node ports.
package leftovers

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The reference plugins are containernetworking/plugins v1.9.1 and v1.10.0. They leave rules
// in nftables, by their nftables backend or by iptables-nft, and in the tables of
// iptables-legacy.

// Leftovers gives access to the rules on the host.
type Leftovers struct{ *iptables.Tables }

// Of returns the access of n.
func Of(n *netops.Net) *Leftovers { return &Leftovers{Tables: n.FilterTables()} }

// Attachment names an attachment that the reference plugins made.
type Attachment = netops.ReferencePluginAttachment

// owns reports whether a rule for an address belongs to the attachment.
func owns(f *Attachment, a netip.Addr) bool {
	if slices.Contains(f.Others, a) {
		return false
	}
	return len(f.Addresses) == 0 || slices.Contains(f.Addresses, a)
}

// Has reports whether rules of the reference's bridge, ptp or portmap for the
// attachment may exist. It is fast if there are none.
func (n *Leftovers) Has(ctx context.Context, f Attachment) (bool, error) {
	type chain struct {
		table iptables.Table
		name  string
	}
	chains := []chain{{n.Native(masqueradeTable()), "masq_checks"}}
	for _, family := range iptables.Families() {
		chains = append(chains, chain{n.Native(hostPortTable(family)), "hostports"})
		for _, prefix := range []string{masqueradePrefix, hostPortPrefix} {
			chains = append(chains, chain{n.nat(family), iptablesChain(prefix, f.Network, f.ContainerID)})
		}
		if n.Run != nil {
			chains = append(chains, chain{n.Legacy(family, "nat"), masqueradePrefix})
		}
	}
	for _, c := range chains {
		if has, err := c.table.Has(ctx, c.name); !isWithoutTables(err) && (err != nil || has) {
			return has, err
		}
	}
	return false, nil
}

// isWithoutTables reports whether an error means that the kernel has no nftables, or that the programs of
// iptables-legacy are not installed, and so that there are no such rules.
func isWithoutTables(err error) bool {
	return errors.Is(err, nlconn.ErrNotSupported) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, exec.ErrNotFound)
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

// nat returns the table nat of iptables-nft.
func (n *Leftovers) nat(family byte) iptables.Table {
	return n.Native(nft.Table{Family: family, Name: "nat"})
}

func masqueradeTable() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: "cni_plugins_masquerade"}
}

func hostPortTable(family byte) nft.Table {
	return nft.Table{Family: family, Name: "cni_hostport"}
}

// masqueradeComment returns the prefix of the comments of an attachment's
// masquerade rules.
func masqueradeComment(f *Attachment) string {
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
	errs := []error{n.removeNative(ctx, masqueradeTable(), []string{"masq_checks"}, func(r *iptables.HeldRule) bool {
		return strings.HasPrefix(r.Comment, masqueradeComment(&f))
	})}
	for _, t := range n.Named("nat", iptables.Families(), chain) {
		errs = append(errs, removeChain(ctx, t, "POSTROUTING", chain, func(r *iptables.HeldRule) bool { return owns(&f, r.Source.Addr()) }))
	}
	return errors.Join(errs...)
}

// RemoveHostPorts removes the rules that the reference's portmap made with either
// backend.
func (n *Leftovers) RemoveHostPorts(ctx context.Context, f Attachment) error {
	chain := iptablesChain(hostPortPrefix, f.Network, f.ContainerID)
	var errs []error
	for _, family := range iptables.Families() {
		errs = append(errs, n.removeNative(ctx, hostPortTable(family), []string{"hostports", "hostip_hostports", "masquerading"}, func(r *iptables.HeldRule) bool {
			return r.Comment == f.ContainerID && owns(&f, target(r))
		}))
	}
	for _, t := range n.Named("nat", iptables.Families(), chain) {
		errs = append(errs, removeChain(ctx, t, hostPortChain, chain, func(*iptables.HeldRule) bool { return !f.Shares }))
	}
	return errors.Join(errs...)
}

// target returns the container's address in a rule of portmap: the target of a
// dnat, or the destination of the traffic that is masqueraded.
func target(r *iptables.HeldRule) netip.Addr {
	if len(r.Constants) > 0 {
		return r.Constants[0]
	}
	return r.Destination.Addr()
}

// HasForward reports whether rules of the reference's firewall may exist: its
// chain, or a firewalld that may have rules for addresses. It is fast if there
// are none.
func (n *Leftovers) HasForward(ctx context.Context) (bool, error) {
	for _, family := range iptables.Families() {
		if has, _ := n.Legacy(family, "filter").Has(ctx, forwardChain); has && n.Run != nil {
			return true, nil
		}
	}
	tables, err := n.NFT.Tables(ctx, unix.NFPROTO_UNSPEC)
	if isWithoutTables(err) {
		return false, nil
	}
	there := slices.Contains(tables, iptables.FirewalldTable)
	if slices.Contains(tables, "filter") {
		for _, family := range iptables.Families() {
			for _, chain := range []string{forwardChain, iptables.FirewalldChain} {
				if err == nil && !there {
					there, err = n.Filter(family, false).Has(ctx, chain)
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
	for _, t := range n.Named("filter", iptables.Families(), forwardChain) {
		errs = append(errs, change(ctx, t, []string{forwardChain}, func(st *iptables.State) []iptables.Op {
			ops, _ := deletions(st, forwardChain, func(r *iptables.HeldRule) bool {
				return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return forwards(r, a) })
			})
			return ops
		}))
	}
	return errors.Join(errs...)
}

// forwards reports whether the rule is exactly one of the two rules that the
// firewall plugin makes for an address.
func forwards(r *iptables.HeldRule, a netip.Addr) bool {
	only := netip.PrefixFrom(a, a.BitLen())
	if r.Text != "" {
		return r.Text == "-d "+only.String()+" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT" || r.Text == "-s "+only.String()+" -j ACCEPT"
	}
	if r.Target != iptables.TargetAccept || r.Comment != "" {
		return false
	}
	switch strings.Join(r.Shape, " ") {
	case "payload cmp immediate":
		return r.Source == only
	case "payload cmp conntrack immediate", "payload cmp ct bitwise cmp immediate":
		return r.Destination == only
	}
	return false
}

// removeNative deletes the rules of the nftables backend in some chains for which chosen
// returns true. If it leaves no rule in them, it deletes the table: an ADD of the reference
// plugins makes it again in one transaction.
func (n *Leftovers) removeNative(ctx context.Context, table nft.Table, chains []string, chosen func(*iptables.HeldRule) bool) error {
	return change(ctx, n.Native(table), chains, func(st *iptables.State) (ops []iptables.Op) {
		left := 0
		for _, chain := range chains {
			some, others := deletions(st, chain, chosen)
			ops, left = append(ops, some...), left+others
		}
		if len(ops) > 0 && left == 0 {
			return []iptables.Op{{Kind: iptables.DeleteTable}}
		}
		return ops
	})
}

// deletions returns the changes that delete the rules of a chain for which chosen returns true, and how many
// rules are left.
func deletions(st *iptables.State, chain string, chosen func(*iptables.HeldRule) bool) (ops []iptables.Op, left int) {
	for _, r := range st.Rules(chain) {
		if chosen(r) {
			ops = append(ops, iptables.Op{Kind: iptables.DeleteRule, Chain: chain, Held: r})
		}
	}
	return ops, len(st.Rules(chain)) - len(ops)
}

// removeChain deletes the rules of an entry chain that jump to a container's
// chain and for which chosen returns true. With the last of them it deletes the
// chain.
func removeChain(ctx context.Context, t iptables.Table, entry, chain string, chosen func(*iptables.HeldRule) bool) error {
	doomed := func(st *iptables.State) []string {
		if st.Chains[chain] == nil {
			return nil
		}
		return []string{chain}
	}
	return removeChains(ctx, t, []string{entry, chain}, doomed, chosen)
}

// removeChains deletes the chains that doomed returns, with the rules that jump to them. A chain stays if the first of the chains to
// read, the entry, jumps to it by a rule for which chosen returns false.
func removeChains(ctx context.Context, t iptables.Table, read []string, doomed func(*iptables.State) []string, chosen func(*iptables.HeldRule) bool) error {
	entry := read[0]
	ops := func(st *iptables.State) (ops []iptables.Op) {
		chains := doomed(st)
		kept := map[string]bool{}
		for name := range st.Chains {
			some, _ := deletions(st, name, func(r *iptables.HeldRule) bool {
				if !slices.Contains(chains, r.Jump) {
					return false
				}
				keep := name == entry && !chosen(r)
				kept[r.Jump] = kept[r.Jump] || keep
				return !keep
			})
			ops = append(ops, some...)
		}
		for _, chain := range chains {
			if !kept[chain] {
				ops = append(ops, iptables.Op{Kind: iptables.PurgeChain, Chain: chain})
			}
		}
		return ops
	}
	err := change(ctx, t, read, ops)
	if errors.Is(err, unix.EBUSY) { // another chain than entry jumps to one of them
		err = change(ctx, t, nil, ops)
	}
	return err
}

// change commits changes of a table. A table that does not exist has no rules.
func change(ctx context.Context, t iptables.Table, chains []string, ops func(*iptables.State) []iptables.Op) error {
	_, err := iptables.Change(ctx, t, chains, ops)
	if isWithoutTables(err) || err == nil {
		return nil
	}
	return fmt.Errorf("remove rules of other plugins: %w", err)
}
