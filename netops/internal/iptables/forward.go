// Package iptables is the filter table of iptables, by its nftables and its legacy
// backend: rules that let forwarded packets pass, and who refuses them.
package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The chains of iptables' filter table that forwarded packets go through. The
// second is the reference firewall plugin's: administrators and tools know it.
const (
	ForwardChain = "FORWARD"
	cniChain     = "CNI-FORWARD"
	// maxAdminChain is XT_EXTENSION_MAXNAMELEN-1 of linux/netfilter/x_tables.h.
	maxAdminChain = 28
)

// What rules are for, in their comments.
const (
	ruleAnswers   = "answers to"
	rulePublished = "published by"
	ruleFrom      = "from"
)

// Tries bounds how often a change starts again because another program
// changed nftables meanwhile.
const Tries = 200

// Forward are the rules of one network: they let pass what its containers send, the
// answers, and what comes to their published ports.
type Forward struct {
	Shared bool `json:"shared,omitempty"`
	// Link is the host's device that the network is behind, or with a "*" at the
	// end all whose names begin so; empty means any.
	Link string `json:"link,omitempty"`
	// Net is the network, or a single address.
	Net netip.Prefix `json:"net"`
	// Admin is the chain that is asked before; it is made empty if it is absent.
	Admin string `json:"admin"`
	// Legacy means the table of iptables-legacy.
	Legacy bool `json:"legacy,omitempty"`
	// Label is the owner.
	Label string `json:"label"`
}

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

// Validate judges the fields; the error wraps ErrInvalid.
func (f *Forward) Validate() error {
	if !f.Net.IsValid() || f.Net != f.Net.Masked() {
		return fmt.Errorf("forward %q: %w: it is no network", f.Net, nlconn.ErrInvalid)
	}
	if f.Link != "" {
		if _, _, err := nft.EncodeIfPattern(f.Link); err != nil {
			return fmt.Errorf("forward: %w: %w", nlconn.ErrInvalid, err)
		}
	}
	if err := CheckChainName(f.Admin); err != nil {
		return fmt.Errorf("forward: %w: %w", nlconn.ErrInvalid, err)
	}
	if !f.Shared && f.Label == "" {
		return fmt.Errorf("forward %s: %w: without a label nobody can tell whose it is", f.Net, nlconn.ErrInvalid)
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
	case slices.Contains([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "QUEUE", "INPUT", "OUTPUT", ForwardChain, cniChain}, name):
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
func (f *Forward) rules() []Rule {
	return []Rule{
		{Chain: cniChain, Dst: f.Net, out: f.Link, state: ctStateAnswers, Comment: f.comment(ruleAnswers), Target: TargetAccept},
		{Chain: cniChain, Dst: f.Net, out: f.Link, state: ctStateDNAT, Comment: f.comment(rulePublished), Target: TargetAccept},
		{Chain: cniChain, Src: f.Net, in: f.Link, Comment: f.comment(ruleFrom), Target: TargetAccept},
	}
}

// jumps lead from FORWARD to the rules, and from these to the administrator's
// chain first.
func (f *Forward) jumps() []Rule {
	return []Rule{
		{Chain: ForwardChain, Comment: "CNI firewall plugin rules", Target: cniChain},
		{Chain: cniChain, Comment: "CNI firewall plugin admin overrides", Target: f.Admin},
	}
}

// missing is what leads from a state of the table to one with f's rules.
func (f *Forward) missing(st *State) []Op {
	var ops []Op
	for _, chain := range []string{ForwardChain, cniChain, f.Admin} {
		if st.Chains[chain] == nil {
			ops = append(ops, Op{Kind: makeChain, Chain: chain})
		}
	}
	for _, r := range f.jumps() {
		if !st.Holds(r.Chain, func(h *HeldRule) bool { return h.Target == r.Target }) {
			ops = append(ops, Op{Kind: InsertRule, Chain: r.Chain, Rule: r})
		}
	}
	for _, r := range f.rules() {
		if !st.Holds(r.Chain, func(h *HeldRule) bool { return f.is(h.Comment, r.Comment) }) {
			ops = append(ops, Op{Kind: appendRule, Chain: r.Chain, Rule: r})
		}
	}
	return ops
}

// removal is what takes f's rules away, and with the last of anybody's the chain.
func (f *Forward) removal(st *State) []Op {
	own := st.Chains[cniChain]
	if own == nil {
		return nil
	}
	var ops, jumps []Op
	left := 0
	for _, h := range own.Rules {
		mine := slices.ContainsFunc(f.rules(), func(r Rule) bool { return f.is(h.Comment, r.Comment) })
		op := Op{Kind: DeleteRule, Chain: cniChain, Held: h}
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
	if forward := st.Chains[ForwardChain]; forward != nil {
		for _, h := range forward.Rules {
			if h.Target == cniChain {
				jumps = append(jumps, Op{Kind: DeleteRule, Chain: ForwardChain, Held: h})
			}
		}
	}
	return append(append(ops, jumps...), Op{Kind: deleteChain, Chain: cniChain})
}

// Missing lists what of f's rules and chains is absent, as iptables' arguments.
func (t *Tables) Missing(ctx context.Context, f *Forward) ([]string, error) {
	st, err := t.Filter(f.family(), f.Legacy).Read(ctx, f.Admin)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, op := range f.missing(st) {
		out = append(out, op.String())
	}
	return out, nil
}

// Add makes those of f's rules that are missing.
func (t *Tables) Add(ctx context.Context, f *Forward) error { return t.change(ctx, f, false) }

// Remove deletes f's rules, and what only they needed.
func (t *Tables) Remove(ctx context.Context, f *Forward) error { return t.change(ctx, f, true) }

// change tries again as long as others change the table meanwhile.
func (t *Tables) change(ctx context.Context, f *Forward, remove bool) error {
	table := t.Filter(f.family(), f.Legacy)
	for range Tries {
		st, err := table.Read(ctx, f.Admin)
		if err != nil {
			return err
		}
		ops := f.missing(st)
		if remove {
			ops = f.removal(st)
		}
		if len(ops) == 0 {
			return nil
		}
		done, err := table.Commit(ctx, st, ops)
		if err != nil {
			return err
		}
		if done && remove && ops[len(ops)-1].Kind == deleteChain {
			return table.tidy(ctx, f.Admin)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("%w: iptables' filter table is being changed all the time", nlconn.ErrBusy)
}

// Tables are iptables' tables of one network namespace.
type Tables struct {
	NFT *nft.Client
	// Run is nil where iptables-legacy's programs cannot be run.
	Run Runner
}

// Filter is the filter table of an address family (NFPROTO_*).
func (t *Tables) Filter(family byte, legacy bool) Table {
	if legacy {
		return &Legacy{Family: family, Run: t.Run}
	}
	return &nftFilter{NFT: t.NFT, table: nft.Table{Family: family, Name: "filter"}}
}
