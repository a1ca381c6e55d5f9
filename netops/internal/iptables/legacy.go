package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Runner runs one of the programs iptables-legacy, ip6tables-legacy,
// iptables-legacy-restore and ip6tables-legacy-restore with arguments and
// standard input, and returns its standard output. Only these programs change a
// legacy table without replacing it as a whole. The error wraps ErrNotSupported
// if the program is not installed.
type Runner func(ctx context.Context, program string, args []string, input string) (string, error)

// legacyTable is a table of iptables-legacy.
type legacyTable struct {
	family byte
	name   string
	run    Runner
}

func (t *legacyTable) String() string { return LegacyProgram(t.family) + "'s table " + t.name }

// LegacyProgram returns the name of a family's program.
func LegacyProgram(family byte) string {
	if family == unix.NFPROTO_IPV6 {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

// execute runs the program, or with a suffix its companion. The option -w makes
// it wait for the lock that all these programs use.
func (t *legacyTable) execute(ctx context.Context, suffix string, args []string, input string) (string, error) {
	program := LegacyProgram(t.family) + suffix
	if t.run == nil {
		return "", fmt.Errorf("%s: %w: programs cannot be run here", program, nlconn.ErrNotSupported)
	}
	out, err := t.run(ctx, program, append([]string{"-w"}, args...), input)
	if err != nil {
		return "", fmt.Errorf("rules of %s in the kernel: %w", t, err)
	}
	return out, nil
}

func (t *legacyTable) Has(_ context.Context, chain string) (bool, error) {
	return IsLegacyLoaded(t.family, t.name) && LegacyMentions(t.family, t.name, chain), nil
}

// Read reads the whole table.
func (t *legacyTable) Read(ctx context.Context, _ ...string) (*State, error) {
	out, err := t.execute(ctx, "", []string{"-t", t.name, "-S"}, "")
	if err != nil {
		return nil, err
	}
	return ParseListing(out), nil
}

// ParseListing reads the output of `iptables -S`. It ignores lines of other
// forms.
func ParseListing(listing string) *State {
	st := &State{Chains: map[string]*Chain{}, listing: listing}
	chain := func(name string) *Chain {
		if st.Chains[name] == nil {
			st.Chains[name] = &Chain{}
		}
		return st.Chains[name]
	}
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		name, rule, _ := strings.Cut(rest, " ")
		if name == "" {
			continue
		}
		switch verb {
		case "-P":
			chain(name).drops = rule == "DROP"
		case "-N":
			chain(name)
		case "-A":
			c := chain(name)
			h := parseListed(rule)
			c.Rules, h.handle = append(c.Rules, h), uint64(len(c.Rules)+1)
		}
	}
	for _, c := range st.Chains {
		for _, h := range c.Rules {
			if st.Chains[h.Target] != nil {
				h.Jump = h.Target
			}
		}
	}
	return st
}

// parseListed reads a listed rule.
func parseListed(rule string) *HeldRule {
	h := &HeldRule{Text: rule, matchesAll: true}
	words := SplitQuoted(rule)
	for i := 0; i+1 < len(words); i++ {
		option, value := words[i], words[i+1]
		h.matchesAll = h.matchesAll && !slices.Contains([]string{"-s", "-d", "-i", "-o", "-p", "!", "-f"}, option)
		if option == "!" {
			i++ // a negated condition
			continue
		}
		switch option {
		case "--comment":
			h.Comment = value
		case "-j", "-g":
			h.Target = value
		case "-m":
			h.matchesAll = h.matchesAll && value == "comment"
		case "-s":
			h.Source, _ = netip.ParsePrefix(value)
		case "-d":
			h.Destination, _ = netip.ParsePrefix(value)
		case "-p":
			h.Proto = nft.ProtocolNumber(value)
		case "--dport", "--dports":
			h.Ports, _ = ParsePorts(value)
		}
	}
	return h
}

// ParsePorts reads a list of ports such as "53,8000:8100".
func ParsePorts(list string) ([]PortRange, error) {
	var all []PortRange
	for one := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(one, ":")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		all = append(all, PortRange{uint16(first), uint16(last)})
	}
	return all, nil
}

// SplitQuoted splits a text at blanks outside of double quotes. Inside double
// quotes a backslash quotes the next character.
func SplitQuoted(s string) []string {
	var words []string
	var word strings.Builder
	quoted, escaped, any := false, false, false
	for _, r := range s {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted, any = !quoted, true
		case r == ' ' && !quoted:
			if any {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(r)
			any = true
		}
	}
	if any {
		words = append(words, word.String())
	}
	return words
}

// Commit makes all changes or none with iptables-legacy-restore. That program
// empties each chain that its input declares, so the input declares only absent
// chains. It refuses the input if a rule to delete is absent.
func (t *legacyTable) Commit(ctx context.Context, st *State, ops []Op) (bool, error) {
	_, err := t.execute(ctx, "-restore", []string{"--noflush"}, t.restoreInput(ops))
	if err == nil {
		return true, nil
	}
	now, readErr := t.Read(ctx)
	if readErr == nil && now.listing != st.listing {
		return false, nil
	}
	return false, err
}

// restoreInput returns the input of iptables-restore.
func (t *legacyTable) restoreInput(ops []Op) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.name)
	for _, op := range ops {
		if op.Kind == makeChain && op.Chain != ForwardChain {
			fmt.Fprintf(&b, ":%s - [0:0]\n", op.Chain)
		}
	}
	inserted := uint64(0) // they change the numbers of later rules
	for _, op := range ops {
		args := strings.Join(op.Rule.args(), " ")
		switch op.Kind {
		case InsertRule:
			if op.Held != nil {
				args = strings.Replace(args, op.Chain, fmt.Sprintf("%s %d", op.Chain, op.Held.handle+inserted), 1)
				inserted++
			}
			fmt.Fprintf(&b, "-I %s\n", args)
		case AppendRule:
			fmt.Fprintf(&b, "-A %s\n", args)
		case DeleteRule:
			fmt.Fprintf(&b, "-D %s %s\n", op.Chain, op.Held.Text)
		case deleteChain:
			fmt.Fprintf(&b, "-X %s\n", op.Chain)
		case PurgeChain:
			fmt.Fprintf(&b, "-F %[1]s\n-X %[1]s\n", op.Chain)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// removeUnused deletes the administrator's chain if it is empty and no rule jumps to it.
func (t *legacyTable) removeUnused(ctx context.Context, admin string) error {
	st, err := t.Read(ctx, admin)
	if err != nil {
		return err
	}
	if c := st.Chains[admin]; c == nil || len(c.Rules) > 0 {
		return nil
	}
	for name := range st.Chains {
		if slices.ContainsFunc(st.Rules(name), func(h *HeldRule) bool { return h.Target == admin }) {
			return nil
		}
	}
	_, err = t.Commit(ctx, st, []Op{{Kind: deleteChain, Chain: admin}})
	return err
}
