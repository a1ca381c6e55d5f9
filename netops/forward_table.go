package netops

import (
	"context"
	"net/netip"
	"slices"
	"strings"
)

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
