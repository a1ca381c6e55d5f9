package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// What the reference plugins made with iptables-legacy, where that is what
// "iptables" means, is in tables of the kernel's that only its programs read.

// removeForeignLegacy has iptables-restore run the lines that plan gives for one
// table of one family. Where the table is not there, nor the programs, there is
// nothing to do, or nothing to be done.
func (n *Net) removeForeignLegacy(ctx context.Context, family byte, table string, plan func(*filterState) []string) error {
	if n.iptables == nil || !isLegacyLoaded(family, table) {
		return nil
	}
	t := &legacyFilter{family: family, run: n.iptables}
	var last error
	for range nft.Tries {
		listing, err := n.iptables(ctx, t.program(), []string{"-w", "-t", table, "-S"}, "")
		if errors.Is(err, exec.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove rules of other plugins from %s: %w", t.program(), err)
		}
		lines := plan(parseListing(listing))
		if len(lines) == 0 {
			return nil
		}
		input := "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
		// It fails as a whole where a rule is gone meanwhile.
		if _, last = n.iptables(ctx, t.program()+"-restore", []string{"-w", "--noflush"}, input); last == nil {
			return nil
		}
	}
	return fmt.Errorf("remove rules of other plugins from %s: %w", t.program(), last)
}

// removeForeignLegacyChain removes the rules of an entry chain that lead to a
// container's chain and are chosen, and with the last of them the chain.
func (n *Net) removeForeignLegacyChain(ctx context.Context, family byte, entry, chain string, chosen func(source netip.Addr) bool) error {
	return n.removeForeignLegacy(ctx, family, "nat", func(st *filterState) []string {
		if st.chains[chain] == nil {
			return nil
		}
		var lines []string
		left := false
		for name, c := range st.chains {
			for _, r := range c.rules {
				switch {
				case r.target != chain:
				case name == entry && !chosen(legacyAddress(r, "-s")):
					left = true
				default:
					lines = append(lines, "-D "+name+" "+r.text)
				}
			}
		}
		if !left {
			lines = append(lines, "-F "+chain, "-X "+chain)
		}
		return lines
	})
}

// removeForeignLegacyForward removes the firewall plugin's rules for addresses.
func (n *Net) removeForeignLegacyForward(ctx context.Context, family byte, addresses []netip.Addr) error {
	return n.removeForeignLegacy(ctx, family, "filter", func(st *filterState) []string {
		c := st.chains[forwardChain]
		if c == nil {
			return nil
		}
		var lines []string
		for _, r := range c.rules {
			if slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(forwardTexts(a), r.text) }) {
				lines = append(lines, "-D "+forwardChain+" "+r.text)
			}
		}
		return lines
	})
}

// forwardTexts are the two rules of an address as iptables lists them.
func forwardTexts(a netip.Addr) []string {
	only := netip.PrefixFrom(a, a.BitLen()).String()
	return []string{"-d " + only + " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-s " + only + " -j ACCEPT"}
}

// legacyAddress is the address of a rule's condition, without its prefix length.
func legacyAddress(r *heldRule, option string) netip.Addr {
	p, err := netip.ParsePrefix(legacyOption(r, option))
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr()
}

// legacyOption is the word behind one of a rule's options, "" without it.
func legacyOption(r *heldRule, option string) string {
	words := splitQuoted(r.text)
	at := slices.Index(words, option)
	if at < 0 || at+1 == len(words) {
		return ""
	}
	return words[at+1]
}

// hasForeignLegacy tells whether iptables-legacy has a nat table with chains that
// may be the reference's.
func (n *Net) hasForeignLegacy() bool {
	return n.iptables != nil && slices.ContainsFunc(bothFamilies(), func(f byte) bool {
		return isLegacyLoaded(f, "nat") && legacyMentions(f, "nat", masqueradePrefix)
	})
}

// collectLegacyChains is collectChains for iptables-legacy.
func (n *Net) collectLegacyChains(ctx context.Context, family byte, entry, prefix, network string, valid []Foreign) error {
	return n.removeForeignLegacy(ctx, family, "nat", func(st *filterState) []string {
		c := st.chains[entry]
		if c == nil {
			return nil
		}
		var lines, chains []string
		for _, r := range c.rules {
			of, id, ok := parseComment(r.comment)
			if !ok || of != network || r.target != iptablesChain(prefix, network, id) || isValidContainer(valid, id) {
				continue
			}
			lines = append(lines, "-D "+entry+" "+r.text)
			if !slices.Contains(chains, r.target) && st.chains[r.target] != nil {
				chains = append(chains, r.target)
			}
		}
		for _, name := range chains {
			lines = append(lines, "-F "+name, "-X "+name)
		}
		return lines
	})
}

// isValidContainer tells whether one of the attachments is of the container.
func isValidContainer(valid []Foreign, id string) bool {
	return slices.ContainsFunc(valid, func(f Foreign) bool { return f.ContainerID == id })
}
