package netops

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// IPTables runs one of the programs iptables-legacy, ip6tables-legacy,
// iptables-legacy-restore and ip6tables-legacy-restore with arguments and
// standard input, and gives its standard output. It is the one way to the
// tables of kernels before nftables without rewriting them whole. The error wraps
// ErrNotSupported where the program is not installed.
type IPTables func(ctx context.Context, program string, args []string, input string) (string, error)

// legacyFilter is the filter table of iptables-legacy.
type legacyFilter struct {
	family byte
	run    IPTables
}

func (t *legacyFilter) program() string {
	if t.family == unix.NFPROTO_IPV6 {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

// execute runs the program or with a suffix its companion, which wait for the
// lock that all of them take.
func (t *legacyFilter) execute(ctx context.Context, suffix string, args []string, input string) (string, error) {
	program := t.program() + suffix
	if t.run == nil {
		return "", fmt.Errorf("%s: %w: programs cannot be run here", program, ErrNotSupported)
	}
	out, err := t.run(ctx, program, append([]string{"-w"}, args...), input)
	if err != nil {
		return "", fmt.Errorf("rules of iptables-legacy in the kernel: %w", err)
	}
	return out, nil
}

func (t *legacyFilter) read(ctx context.Context, _ string) (*filterState, error) {
	out, err := t.execute(ctx, "", []string{"-t", "filter", "-S"}, "")
	if err != nil {
		return nil, err
	}
	return parseListing(out), nil
}

// parseListing reads what `iptables -S` prints. Lines of other forms are left out.
func parseListing(listing string) *filterState {
	st := &filterState{chains: map[string]*filterChain{}}
	chain := func(name string) *filterChain {
		if st.chains[name] == nil {
			st.chains[name] = &filterChain{}
		}
		return st.chains[name]
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
			c.rules = append(c.rules, parseListed(rule))
		}
	}
	return st
}

// parseListed reads a rule's comment, target, and whether it has a condition.
func parseListed(rule string) *heldRule {
	h := &heldRule{text: rule, matchesAll: true}
	words := splitQuoted(rule)
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "--comment":
			h.comment = words[i+1]
		case "-j", "-g":
			h.target = words[i+1]
		case "-m":
			h.matchesAll = h.matchesAll && words[i+1] == "comment"
		case "-s", "-d", "-i", "-o", "-p", "!", "-f":
			h.matchesAll = false
		}
	}
	return h
}

// splitQuoted splits at blanks outside of double quotes, in which a backslash
// takes the next character as it is.
func splitQuoted(s string) []string {
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

// commit has iptables-legacy-restore make all changes or none. It takes a chain
// that it declares for a new one and would empty it, so only missing ones are.
func (t *legacyFilter) commit(ctx context.Context, _ *filterState, ops []filterOp) (bool, error) {
	_, err := t.execute(ctx, "-restore", []string{"--noflush"}, restoreInput(ops))
	return err == nil, err
}

// restoreInput is what iptables-restore reads.
func restoreInput(ops []filterOp) string {
	var b strings.Builder
	b.WriteString("*filter\n")
	for _, op := range ops {
		if op.kind == makeChain && op.chain != hookChain {
			fmt.Fprintf(&b, ":%s - [0:0]\n", op.chain)
		}
	}
	for _, op := range ops {
		args := strings.Join(op.rule.args(), " ")
		switch op.kind {
		case insertRule:
			fmt.Fprintf(&b, "-I %s\n", args)
		case appendRule:
			fmt.Fprintf(&b, "-A %s\n", args)
		case deleteRule:
			fmt.Fprintf(&b, "-D %s %s\n", op.chain, op.held.text)
		case deleteChain:
			fmt.Fprintf(&b, "-X %s\n", op.chain)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// tidy removes the administrator's chain if nothing is in it and nobody leads
// to it.
func (t *legacyFilter) tidy(ctx context.Context, admin string) error {
	st, err := t.read(ctx, admin)
	if err != nil {
		return err
	}
	if c := st.chains[admin]; c == nil || len(c.rules) > 0 {
		return nil
	}
	for name := range st.chains {
		if st.holds(name, func(h *heldRule) bool { return h.target == admin }) {
			return nil
		}
	}
	_, err = t.commit(ctx, st, []filterOp{{kind: deleteChain, chain: admin}})
	return err
}
