package iptables

import (
	"context"
	"net/netip"
	"slices"
	"strings"
)

// Table is iptables' filter table of one address family.
type Table interface {
	// read reads FORWARD, our chain and the administrator's.
	Read(ctx context.Context, admin string) (*State, error)
	// commit makes all of the changes or none; done is false when the table is
	// not as it was read any more.
	Commit(ctx context.Context, st *State, ops []Op) (done bool, err error)
	// tidy removes what only our chain needed, where nobody else uses it.
	tidy(ctx context.Context, admin string) error
}

// State is a filter table as it was read.
type State struct {
	Chains map[string]*Chain
	// generation is nftables' at that time.
	generation uint32
}

// Holds tells whether a chain has such a rule.
func (st *State) Holds(chain string, is func(*HeldRule) bool) bool {
	c := st.Chains[chain]
	return c != nil && slices.ContainsFunc(c.Rules, is)
}

// Chain is a chain of a filter table.
type Chain struct {
	// drops is a base chain's policy.
	drops bool
	Rules []*HeldRule
}

// refuses tells whether what no rule of the chain decides on is dropped: by the
// policy, or by a last rule that rejects everything.
func (c *Chain) refuses() bool {
	if c.drops {
		return true
	}
	n := len(c.Rules)
	return n > 0 && c.Rules[n-1].matchesAll && slices.Contains([]string{"DROP", "REJECT"}, c.Rules[n-1].Target)
}

// HeldRule is a rule that is there.
type HeldRule struct {
	Comment string
	// Target is a verdict in capitals or a chain.
	Target string
	// matchesAll tells that there is no condition.
	matchesAll bool
	// handle names the rule in nftables, text in iptables-legacy.
	handle uint64
	Text   string
}

// jumps tells whether the rule leads to a chain.
func (h *HeldRule) jumps() bool {
	return !slices.Contains([]string{"", TargetAccept, "DROP", "REJECT", "RETURN", "QUEUE"}, h.Target)
}

// TargetAccept lets a packet pass.
const TargetAccept = "ACCEPT"

// States of xt_conntrack: XT_CONNTRACK_STATE_BIT and XT_CONNTRACK_STATE_DNAT of
// linux/netfilter/xt_conntrack.h.
const (
	ctStateAnswers = 1<<1 | 1<<2 // ESTABLISHED, RELATED
	ctStateDNAT    = 1 << 7
)

// Rule is a rule to be made.
type Rule struct {
	Chain    string
	in, out  string // a device, "veth*" for all that begin so, "" for any
	Src, Dst netip.Prefix
	state    uint16 // states of xt_conntrack, 0 for any
	Comment  string
	Target   string
}

// Op is one change of a filter table.
type Op struct {
	Kind  opKind
	Chain string
	Rule  Rule
	Held  *HeldRule
}

type opKind uint8

const (
	makeChain opKind = iota
	InsertRule
	appendRule
	DeleteRule
	deleteChain
)

// String is what the change makes, for differences.
func (op Op) String() string {
	if op.Kind == makeChain {
		return "chain " + op.Chain
	}
	return "rule " + strings.Join(op.Rule.args(), " ")
}

// args is the rule as iptables' arguments.
func (r *Rule) args() []string {
	a := []string{r.Chain}
	for _, o := range []struct{ flag, value string }{
		{"-s", prefixText(r.Src)},
		{"-d", prefixText(r.Dst)},
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
	return append(a, "-m", "comment", "--comment", `"`+r.Comment+`"`, "-j", r.Target)
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
