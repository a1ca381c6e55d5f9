package iptables

import (
	"context"
	"net/netip"
	"strings"
)

// Table is a table of iptables of one address family and one backend, or a table of another program in nftables.
type Table interface {
	// Read reads the chains with some names, or all chains if none is named.
	Read(ctx context.Context, chains ...string) (*State, error)
	// Has reports whether the table has a chain. For iptables-legacy it may be a chain whose name begins with the text.
	Has(ctx context.Context, chain string) (bool, error)
	// Commit makes all changes or none. done is false if the table changed after
	// it was read.
	Commit(ctx context.Context, st *State, ops []Op) (done bool, err error)
	// String names the table: "nftables table ip nat".
	String() string
	// removeUnused deletes what only CNI-FORWARD needed, if no other program uses it.
	removeUnused(ctx context.Context, admin string) error
}

// State is a table as it was read.
type State struct {
	Chains map[string]*Chain
	// generation is nftables' generation at that time, listing the output of iptables-legacy's program.
	generation uint32
	listing    string
}

// Rules returns the rules of a chain. An absent chain has none.
func (st *State) Rules(chain string) []*HeldRule {
	if c := st.Chains[chain]; c != nil {
		return c.Rules
	}
	return nil
}

// add adds a chain or a rule to the state.
func (st *State) add(op Op) {
	if op.Kind == makeChain {
		st.Chains[op.Chain] = &Chain{}
		return
	}
	c := st.Chains[op.Chain]
	c.Rules = append(c.Rules, &HeldRule{Comment: op.Rule.Comment, Target: op.Rule.Target})
}

// Chain is a chain of a table.
type Chain struct {
	// drops reports whether the policy of a base chain is drop.
	drops bool
	Rules []*HeldRule
	// known has the identities of the first indexed rules; see identities.
	known   map[string]bool
	indexed int
}

// identities returns what identifies the chain's rules: each comment, and each
// comment's part before the label. An index keeps the time linear for thousands of rules.
func (c *Chain) identities() map[string]bool {
	if c.known == nil {
		c.known = map[string]bool{}
	}
	for _, h := range c.Rules[c.indexed:] {
		begin, _, _ := strings.Cut(h.Comment, ": ")
		c.known[h.Comment], c.known[begin] = true, true
	}
	c.indexed = len(c.Rules)
	return c.known
}

// refuses reports whether the chain drops the packets that no rule accepts: by
// its policy, or by a rule that drops or rejects everything.
func (c *Chain) refuses() bool { return c.drops || c.Refusal() < len(c.Rules) }

// Refusal returns the index of the first rule that drops or rejects everything, or the number of rules.
// Rules behind it have no effect.
func (c *Chain) Refusal() int {
	for i, h := range c.Rules {
		if h.matchesAll && (h.Target == "DROP" || h.Target == "REJECT") {
			return i
		}
	}
	return len(c.Rules)
}

// TargetAccept is the target that accepts a packet.
const TargetAccept = "ACCEPT"

// ctStateAnswers and ctStateDNAT are states of xt_conntrack:
// XT_CONNTRACK_STATE_BIT and XT_CONNTRACK_STATE_DNAT of
// linux/netfilter/xt_conntrack.h.
const (
	ctStateAnswers = 1<<1 | 1<<2 // ESTABLISHED, RELATED
	ctStateDNAT    = 1 << 7
)

// Rule is a rule to be added.
type Rule struct {
	Chain    string
	in, out  string // a device, "veth*" for all names with this prefix, "" for any
	Src, Dst netip.Prefix
	state    uint16 // states of xt_conntrack, 0 for any
	Comment  string
	Target   string
}

// Op is one change of a table.
type Op struct {
	Kind  opKind
	Chain string
	Rule  Rule
	// Held is the rule to delete, or the one before which InsertRule inserts. Without it, InsertRule inserts before all rules.
	Held *HeldRule
}

type opKind uint8

// The kinds of changes.
const (
	makeChain opKind = iota
	InsertRule
	AppendRule
	DeleteRule
	deleteChain
	// PurgeChain deletes a chain with its rules.
	PurgeChain
	// DeleteTable deletes a table of nftables with all its chains.
	DeleteTable
)

// String returns the object that the change adds, for lists of differences.
func (op Op) String() string {
	if op.Kind == makeChain {
		return "chain " + op.Chain
	}
	return "rule " + strings.Join(op.Rule.args(), " ")
}

// args returns the rule as iptables' arguments.
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

// iptablesLink returns a device in iptables' syntax: "veth+" for "veth*".
func iptablesLink(name string) string {
	if begin, isPattern := strings.CutSuffix(name, "*"); isPattern {
		return begin + "+"
	}
	return name
}

// PolicyDrops reports whether the policy of a base chain is drop.
func (c *Chain) PolicyDrops() bool { return c.drops }
