package iptables

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Runner runs one of the programs iptables-legacy, ip6tables-legacy,
// iptables-legacy-restore and ip6tables-legacy-restore with arguments and
// standard input, and returns its standard output. Only these programs change a
// legacy table without replacing it as a whole. The error wraps ErrNotSupported
// if the program is not installed.
type Runner func(ctx context.Context, program string, args []string, input string) (string, error)

// Legacy is the filter table of iptables-legacy.
type Legacy struct {
	Family byte
	Run    Runner
}

// Program returns the name of the family's program.
func (t *Legacy) Program() string {
	if t.Family == unix.NFPROTO_IPV6 {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

// execute runs the program, or with a suffix its companion. The option -w makes
// it wait for the lock that all these programs use.
func (t *Legacy) execute(ctx context.Context, suffix string, args []string, input string) (string, error) {
	program := t.Program() + suffix
	if t.Run == nil {
		return "", fmt.Errorf("%s: %w: programs cannot be run here", program, nlconn.ErrNotSupported)
	}
	out, err := t.Run(ctx, program, append([]string{"-w"}, args...), input)
	if err != nil {
		return "", fmt.Errorf("rules of iptables-legacy in the kernel: %w", err)
	}
	return out, nil
}

// Read reads the whole table.
func (t *Legacy) Read(ctx context.Context, _ ...string) (*State, error) {
	out, err := t.execute(ctx, "", []string{"-t", "filter", "-S"}, "")
	if err != nil {
		return nil, err
	}
	return ParseListing(out), nil
}

// ParseListing reads the output of `iptables -S`. It ignores lines of other
// forms.
func ParseListing(listing string) *State {
	st := &State{Chains: map[string]*Chain{}}
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
	return st
}

// parseListed reads a rule's comment and target, and whether it has a condition.
func parseListed(rule string) *HeldRule {
	h := &HeldRule{Text: rule, matchesAll: true}
	words := SplitQuoted(rule)
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "--comment":
			h.Comment = words[i+1]
		case "-j", "-g":
			h.Target = words[i+1]
		case "-m":
			h.matchesAll = h.matchesAll && words[i+1] == "comment"
		case "-s", "-d", "-i", "-o", "-p", "!", "-f":
			h.matchesAll = false
		}
	}
	return h
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
// chains.
func (t *Legacy) Commit(ctx context.Context, _ *State, ops []Op) (bool, error) {
	_, err := t.execute(ctx, "-restore", []string{"--noflush"}, restoreInput(ops))
	return err == nil, err
}

// restoreInput returns the input of iptables-restore.
func restoreInput(ops []Op) string {
	var b strings.Builder
	b.WriteString("*filter\n")
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
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// removeUnused deletes the administrator's chain if it is empty and no rule jumps to it.
func (t *Legacy) removeUnused(ctx context.Context, admin string) error {
	st, err := t.Read(ctx, admin)
	if err != nil {
		return err
	}
	if c := st.Chains[admin]; c == nil || len(c.Rules) > 0 {
		return nil
	}
	for name := range st.Chains {
		if st.Holds(name, func(h *HeldRule) bool { return h.Target == admin }) {
			return nil
		}
	}
	_, err = t.Commit(ctx, st, []Op{{Kind: deleteChain, Chain: admin}})
	return err
}
