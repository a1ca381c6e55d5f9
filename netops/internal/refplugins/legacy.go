package refplugins

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
)

// If "iptables" is iptables-legacy, the rules of the reference plugins are in
// kernel tables that only iptables-legacy's programs read.

// removeLegacy runs iptables-restore with the lines that plan returns for one
// table of one family. If the table or the programs are absent, it does nothing.
func (n *Leftovers) removeLegacy(ctx context.Context, family byte, table string, plan func(*iptables.State) []string) error {
	if n.IPTables == nil || !iptables.IsLegacyLoaded(family, table) {
		return nil
	}
	t := &iptables.Legacy{Family: family, Run: n.IPTables}
	var last error
	for range nft.Tries {
		listing, err := n.IPTables(ctx, t.Program(), []string{"-w", "-t", table, "-S"}, "")
		if errors.Is(err, exec.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove rules of other plugins from %s: %w", t.Program(), err)
		}
		lines := plan(iptables.ParseListing(listing))
		if len(lines) == 0 {
			return nil
		}
		input := "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
		// iptables-restore refuses all lines if one of the rules is absent.
		if _, last = n.IPTables(ctx, t.Program()+"-restore", []string{"-w", "--noflush"}, input); last == nil {
			return nil
		}
	}
	return fmt.Errorf("remove rules of other plugins from %s: %w", t.Program(), last)
}

// removeLegacyChain removes the rules of an entry chain that jump to a chain and
// for which chosen returns true. With the last of them it deletes the chain.
func (n *Leftovers) removeLegacyChain(ctx context.Context, family byte, table, entry, chain string, chosen func(source netip.Addr) bool) error {
	return n.removeLegacy(ctx, family, table, func(st *iptables.State) []string {
		if st.Chains[chain] == nil {
			return nil
		}
		var lines []string
		left := false
		for name, c := range st.Chains {
			for _, r := range c.Rules {
				switch {
				case r.Target != chain:
				case name == entry && !chosen(legacyAddress(r, "-s")):
					left = true
				default:
					lines = append(lines, "-D "+name+" "+r.Text)
				}
			}
		}
		if !left {
			lines = append(lines, "-F "+chain, "-X "+chain)
		}
		return lines
	})
}

// removeLegacyForward removes the firewall plugin's rules for addresses.
func (n *Leftovers) removeLegacyForward(ctx context.Context, family byte, addresses []netip.Addr) error {
	return n.removeLegacy(ctx, family, "filter", func(st *iptables.State) []string {
		c := st.Chains[forwardChain]
		if c == nil {
			return nil
		}
		var lines []string
		for _, r := range c.Rules {
			if slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(forwardTexts(a), r.Text) }) {
				lines = append(lines, "-D "+forwardChain+" "+r.Text)
			}
		}
		return lines
	})
}

// forwardTexts returns the two rules of an address in the form in which iptables
// lists them.
func forwardTexts(a netip.Addr) []string {
	only := netip.PrefixFrom(a, a.BitLen()).String()
	return []string{"-d " + only + " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-s " + only + " -j ACCEPT"}
}

// legacyAddress returns the address of a rule's option, without its prefix
// length.
func legacyAddress(r *iptables.HeldRule, option string) netip.Addr {
	p, err := netip.ParsePrefix(legacyOption(r, option))
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr()
}

// legacyOption returns the word after one of a rule's options, or "".
func legacyOption(r *iptables.HeldRule, option string) string {
	words := iptables.SplitQuoted(r.Text)
	at := slices.Index(words, option)
	if at < 0 || at+1 == len(words) {
		return ""
	}
	return words[at+1]
}

// hasLegacy reports whether iptables-legacy has a nat table that may have chains
// of the reference plugins.
func (n *Leftovers) hasLegacy() bool {
	return n.IPTables != nil && slices.ContainsFunc(bothFamilies(), func(f byte) bool {
		return iptables.IsLegacyLoaded(f, "nat") && iptables.LegacyMentions(f, "nat", masqueradePrefix)
	})
}

// collectLegacyChains is collectChains for iptables-legacy.
func (n *Leftovers) collectLegacyChains(ctx context.Context, family byte, entry, prefix, network string, valid []Attachment) error {
	return n.removeLegacy(ctx, family, "nat", func(st *iptables.State) []string {
		c := st.Chains[entry]
		if c == nil {
			return nil
		}
		var lines, chains []string
		for _, r := range c.Rules {
			of, id, ok := parseComment(r.Comment)
			if !ok || of != network || r.Target != iptablesChain(prefix, network, id) || isValidContainer(valid, id) {
				continue
			}
			lines = append(lines, "-D "+entry+" "+r.Text)
			if !slices.Contains(chains, r.Target) && st.Chains[r.Target] != nil {
				chains = append(chains, r.Target)
			}
		}
		for _, name := range chains {
			lines = append(lines, "-F "+name, "-X "+name)
		}
		return lines
	})
}

// isValidContainer reports whether one of the attachments belongs to the
// container.
func isValidContainer(valid []Attachment, id string) bool {
	return slices.ContainsFunc(valid, func(f Attachment) bool { return f.ContainerID == id })
}
