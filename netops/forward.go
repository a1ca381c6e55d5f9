package netops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// The chains of iptables' filter table that forwarded packets go through. The
// second is the reference firewall plugin's: administrators and tools know it.
const (
	hookChain = "FORWARD"
	cniChain  = "CNI-FORWARD"
	// maxAdminChain is XT_EXTENSION_MAXNAMELEN-1 of linux/netfilter/x_tables.h.
	maxAdminChain = 28
)

// What rules are for, in their comments.
const (
	ruleAnswers   = "answers to"
	rulePublished = "published by"
	ruleFrom      = "from"
)

// forwardTries bounds how often a change starts again because another program
// changed nftables meanwhile.
const forwardTries = 200

// Where is the host's namespace.
func (f *Forward) Where() Place { return Host }

// IsShared tells whether attachments share the rules.
func (f *Forward) IsShared() bool { return f.Shared }

func (f *Forward) object() {}

// String tells the network, and what else than the label tells rules apart.
func (f *Forward) String() string {
	w := []string{"forward", f.Net.String()}
	if f.Link != "" {
		w = append(w, "dev", f.Link)
	}
	w = append(w, "admin", f.Admin)
	if f.Legacy {
		w = append(w, "legacy")
	}
	return strings.Join(w, " ")
}

func (f *Forward) validate() error {
	if !f.Net.IsValid() || f.Net != f.Net.Masked() {
		return fmt.Errorf("forward %q: %w: it is no network", f.Net, ErrInvalid)
	}
	if f.Link != "" {
		if _, _, err := nft.EncodeIfPattern(f.Link); err != nil {
			return fmt.Errorf("forward: %w: %w", ErrInvalid, err)
		}
	}
	if err := CheckChainName(f.Admin); err != nil {
		return fmt.Errorf("forward: %w: %w", ErrInvalid, err)
	}
	if !f.Shared && f.Label == "" {
		return fmt.Errorf("forward %s: %w: without a label nobody can tell whose it is", f.Net, ErrInvalid)
	}
	return nil
}

// CheckChainName applies iptables' rules for the names of chains.
func CheckChainName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\/:`, r) }
	switch {
	case name == "" || len(name) > maxAdminChain:
		return fmt.Errorf("chain %q: a name has 1 to %d bytes", name, maxAdminChain)
	case strings.ContainsFunc(name, bad) || strings.ContainsAny(name[:1], "-!"):
		return fmt.Errorf("chain %q: a name has letters, digits and most signs, and begins with neither \"-\" nor \"!\"", name)
	case slices.Contains([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "QUEUE", "INPUT", "OUTPUT", hookChain, cniChain}, name):
		return fmt.Errorf("chain %q: the name has a meaning of its own", name)
	}
	return nil
}

// family is the network's.
func (f *Forward) family() byte {
	if f.Net.Addr().Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// comment names a rule: what it is for, then whose it is. Shared rules are the
// same whoever made them, so only the first part counts then.
func (f *Forward) comment(what string) string {
	text := "cnibox " + what + " " + f.Net.String()
	if f.Link != "" {
		text += " " + f.Link
	}
	return text + ": " + nft.CleanLabel(f.Label)
}

// is tells whether a comment is the one of f's rule of that comment.
func (f *Forward) is(comment, own string) bool {
	if !f.Shared {
		return comment == own
	}
	begin, _, _ := strings.Cut(own, ": ")
	have, _, _ := strings.Cut(comment, ": ")
	return begin == have
}

// rules are what the network's containers may send, the answers to it, and what
// comes to their published ports.
func (f *Forward) rules() []filterRule {
	return []filterRule{
		{chain: cniChain, dst: f.Net, out: f.Link, state: ctStateAnswers, comment: f.comment(ruleAnswers), target: targetAccept},
		{chain: cniChain, dst: f.Net, out: f.Link, state: ctStateDNAT, comment: f.comment(rulePublished), target: targetAccept},
		{chain: cniChain, src: f.Net, in: f.Link, comment: f.comment(ruleFrom), target: targetAccept},
	}
}

// jumps lead from FORWARD to the rules, and from these to the administrator's
// chain first.
func (f *Forward) jumps() []filterRule {
	return []filterRule{
		{chain: hookChain, comment: "CNI firewall plugin rules", target: cniChain},
		{chain: cniChain, comment: "CNI firewall plugin admin overrides", target: f.Admin},
	}
}

// missing is what leads from a state of the table to one with f's rules.
func (f *Forward) missing(st *filterState) []filterOp {
	var ops []filterOp
	for _, chain := range []string{hookChain, cniChain, f.Admin} {
		if st.chains[chain] == nil {
			ops = append(ops, filterOp{kind: makeChain, chain: chain})
		}
	}
	for _, r := range f.jumps() {
		if !st.holds(r.chain, func(h *heldRule) bool { return h.target == r.target }) {
			ops = append(ops, filterOp{kind: insertRule, chain: r.chain, rule: r})
		}
	}
	for _, r := range f.rules() {
		if !st.holds(r.chain, func(h *heldRule) bool { return f.is(h.comment, r.comment) }) {
			ops = append(ops, filterOp{kind: appendRule, chain: r.chain, rule: r})
		}
	}
	return ops
}

// removal is what takes f's rules away, and with the last of anybody's the chain.
func (f *Forward) removal(st *filterState) []filterOp {
	own := st.chains[cniChain]
	if own == nil {
		return nil
	}
	var ops, jumps []filterOp
	left := 0
	for _, h := range own.rules {
		mine := slices.ContainsFunc(f.rules(), func(r filterRule) bool { return f.is(h.comment, r.comment) })
		op := filterOp{kind: deleteRule, chain: cniChain, held: h}
		switch {
		case mine:
			ops = append(ops, op)
		case h.jumps():
			jumps = append(jumps, op)
		default:
			left++
		}
	}
	if left > 0 {
		return ops
	}
	if forward := st.chains[hookChain]; forward != nil {
		for _, h := range forward.rules {
			if h.target == cniChain {
				jumps = append(jumps, filterOp{kind: deleteRule, chain: hookChain, held: h})
			}
		}
	}
	return append(append(ops, jumps...), filterOp{kind: deleteChain, chain: cniChain})
}

func (f *Forward) plan(ctx context.Context, s *session) ([]Change, error) {
	st, err := s.net.filterTable(f).read(ctx, f.Admin)
	if err != nil {
		return nil, err
	}
	switch {
	case !f.Shared:
		return []Change{{Do: Step{VerbAdd, f}, Undo: &Step{VerbDel, f}}}, nil
	case len(f.missing(st)) == 0:
		return nil, nil
	}
	return []Change{{Do: Step{VerbAdd, f}}}, nil
}

func (f *Forward) verify(ctx context.Context, s *session) ([]Difference, error) {
	st, err := s.net.filterTable(f).read(ctx, f.Admin)
	if err != nil {
		return nil, err
	}
	d := differences{object: f}
	for _, op := range f.missing(st) {
		d.add(op.String(), "absent")
	}
	return d.list, nil
}

// forward makes one step.
func (a *applier) forward(ctx context.Context, c Change) error {
	err := c.Do.Object.(*Forward).run(ctx, a.net, c.Do.Verb)
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		a.done = append(a.done, c) // in doubt it was made
	}
	if err == nil {
		err = a.net.restoreForwards(ctx)
	}
	if err != nil {
		return describeStep(c.Do, err)
	}
	return nil
}

// restoreForwards makes recorded rules that are not there: somebody flushed the
// chain. Rules are added seldom, and one network's loss is mostly everybody's.
func (n *Net) restoreForwards(ctx context.Context) error {
	if n.recordedForwards == nil {
		return nil
	}
	recorded, err := n.recordedForwards(ctx)
	if err != nil {
		return fmt.Errorf("list recorded rules: %w", err)
	}
	for _, f := range recorded {
		if err := f.run(ctx, n, VerbAdd); err != nil {
			return err
		}
	}
	return nil
}

// run makes a step: again as long as others change the table meanwhile.
func (f *Forward) run(ctx context.Context, n *Net, v Verb) error {
	table := n.filterTable(f)
	for range forwardTries {
		st, err := table.read(ctx, f.Admin)
		if err != nil {
			return err
		}
		ops := f.missing(st)
		if v == VerbDel {
			ops = f.removal(st)
		}
		if len(ops) == 0 {
			return nil
		}
		done, err := table.commit(ctx, st, ops)
		if err != nil {
			return err
		}
		if done && v == VerbDel && ops[len(ops)-1].kind == deleteChain {
			return table.tidy(ctx, f.Admin)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("%w: iptables' filter table is being changed all the time", ErrBusy)
}

// filterTable is where f's rules are.
func (n *Net) filterTable(f *Forward) filterTable {
	if f.Legacy {
		return &legacyFilter{family: f.family(), run: n.iptables}
	}
	return &nftFilter{nft: n.nft, table: nft.Table{Family: f.family(), Name: "filter"}}
}
