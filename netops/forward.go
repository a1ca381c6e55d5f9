package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
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
		if _, _, err := encodeIfPattern(f.Link); err != nil {
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
	return text + ": " + cleanLabel(f.Label)
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
	if err != nil {
		return describeStep(c.Do, err)
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
	return &nftFilter{nft: n.nft, table: nftTable{f.family(), "filter"}}
}

// filterTable is iptables' filter table of one address family.
type filterTable interface {
	// read reads FORWARD, our chain and the administrator's.
	read(ctx context.Context, admin string) (*filterState, error)
	// commit makes all of the changes or none; done is false when the table is
	// not as it was read any more.
	commit(ctx context.Context, st *filterState, ops []filterOp) (done bool, err error)
	// tidy removes what only our chain needed, where nobody else uses it.
	tidy(ctx context.Context, admin string) error
}

// filterState is a filter table as it was read.
type filterState struct {
	chains map[string]*filterChain
	// generation is nftables' at that time.
	generation uint32
}

// holds tells whether a chain has such a rule.
func (st *filterState) holds(chain string, is func(*heldRule) bool) bool {
	c := st.chains[chain]
	return c != nil && slices.ContainsFunc(c.rules, is)
}

// filterChain is a chain of a filter table.
type filterChain struct {
	// drops is a base chain's policy.
	drops bool
	rules []*heldRule
}

// refuses tells whether what no rule of the chain decides on is dropped: by the
// policy, or by a last rule that rejects everything.
func (c *filterChain) refuses() bool {
	if c.drops {
		return true
	}
	n := len(c.rules)
	return n > 0 && c.rules[n-1].matchesAll && slices.Contains([]string{"DROP", "REJECT"}, c.rules[n-1].target)
}

// heldRule is a rule that is there.
type heldRule struct {
	comment string
	// target is a verdict in capitals or a chain.
	target string
	// matchesAll tells that there is no condition.
	matchesAll bool
	// handle names the rule in nftables, text in iptables-legacy.
	handle uint64
	text   string
}

// jumps tells whether the rule leads to a chain.
func (h *heldRule) jumps() bool {
	return !slices.Contains([]string{"", targetAccept, "DROP", "REJECT", "RETURN", "QUEUE"}, h.target)
}

// targetAccept lets a packet pass.
const targetAccept = "ACCEPT"

// States of xt_conntrack: XT_CONNTRACK_STATE_BIT and XT_CONNTRACK_STATE_DNAT of
// linux/netfilter/xt_conntrack.h.
const (
	ctStateAnswers = 1<<1 | 1<<2 // ESTABLISHED, RELATED
	ctStateDNAT    = 1 << 7
)

// filterRule is a rule to be made.
type filterRule struct {
	chain    string
	in, out  string // a device, "veth*" for all that begin so, "" for any
	src, dst netip.Prefix
	state    uint16 // states of xt_conntrack, 0 for any
	comment  string
	target   string
}

// filterOp is one change of a filter table.
type filterOp struct {
	kind  filterOpKind
	chain string
	rule  filterRule
	held  *heldRule
}

type filterOpKind uint8

const (
	makeChain filterOpKind = iota
	insertRule
	appendRule
	deleteRule
	deleteChain
)

// String is what the change makes, for differences.
func (op filterOp) String() string {
	if op.kind == makeChain {
		return "chain " + op.chain
	}
	return "rule " + strings.Join(op.rule.args(), " ")
}

// args is the rule as iptables' arguments.
func (r *filterRule) args() []string {
	a := []string{r.chain}
	for _, o := range []struct{ flag, value string }{
		{"-s", prefixText(r.src)},
		{"-d", prefixText(r.dst)},
		{"-i", iptablesLink(r.in)},
		{"-o", iptablesLink(r.out)},
	} {
		if o.value != "" {
			a = append(a, o.flag, o.value)
		}
	}
	switch r.state {
	case ctStateAnswers:
		a = append(a, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
	case ctStateDNAT:
		a = append(a, "-m", "conntrack", "--ctstate", "DNAT")
	}
	return append(a, "-m", "comment", "--comment", `"`+r.comment+`"`, "-j", r.target)
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// iptablesLink is a device, or "veth+" for all that begin so.
func iptablesLink(name string) string {
	if begin, isPattern := strings.CutSuffix(name, "*"); isPattern {
		return begin + "+"
	}
	return name
}
