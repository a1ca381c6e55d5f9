// Package iptables works on the filter table of iptables, of its nftables backend
// and of its legacy backend. It adds rules that accept forwarded packets, and
// reports what refuses forwarded packets.
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

// The chains of iptables' filter table for forwarded packets. CNI-FORWARD is also
// the chain of the reference firewall plugin; administrators and tools know it.
const (
	ForwardChain = "FORWARD"
	cniChain     = "CNI-FORWARD"
	// maxAdminChain is XT_EXTENSION_MAXNAMELEN-1 of linux/netfilter/x_tables.h.
	maxAdminChain = 28
)

// The purposes of rules, as written in their comments.
const (
	ruleAnswers   = "answers to"
	rulePublished = "published by"
	ruleFrom      = "from"
)

// Tries limits how often a change is repeated because another program changed
// nftables at the same time.
const Tries = 200

// Forward describes the accept rules of one network: for packets from its
// containers, for replies to them, and for packets to their published ports.
type Forward struct {
	Shared bool `json:"shared,omitempty"`
	// Link is the host device of the network. A "*" at the end matches all
	// devices whose names begin with the text before it. Empty means any device.
	Link string `json:"link,omitempty"`
	// Net is the network, or a single address.
	Net netip.Prefix `json:"net"`
	// Admin is the administrator's chain. It comes before the rules, and is made
	// empty if it is absent.
	Admin string `json:"admin"`
	// Legacy selects the table of iptables-legacy.
	Legacy bool `json:"legacy,omitempty"`
	// Label names the owner.
	Label string `json:"label"`
}

// String returns the network and the other fields that distinguish rules, except
// the label.
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

// Validate checks the fields. The error wraps ErrInvalid.
func (f *Forward) Validate() error {
	if !f.Net.IsValid() || f.Net != f.Net.Masked() {
		return fmt.Errorf("forward %q: %w: it is not a network", f.Net, nlconn.ErrInvalid)
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
		return fmt.Errorf("forward %s: %w: it has no label that names its owner", f.Net, nlconn.ErrInvalid)
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
		return fmt.Errorf("chain %q: iptables or cnibox uses the name", name)
	}
	return nil
}

// family returns the network's address family (NFPROTO_*).
func (f *Forward) family() byte { return FamilyOf(f.Net.Addr().Is6()) }

// comment returns the comment of a rule: its purpose and network, then the label.
// For shared rules only the first part counts, because the label may be of any
// owner.
func (f *Forward) comment(what string) string {
	text := "cnibox " + what + " " + f.Net.String()
	if f.Link != "" {
		text += " " + f.Link
	}
	return text + ": " + nft.CleanLabel(f.Label)
}

// identity returns the part of a comment that identifies a rule of f.
func (f *Forward) identity(comment string) string {
	if !f.Shared {
		return comment
	}
	begin, _, _ := strings.Cut(comment, ": ")
	return begin
}

// rules returns the rules for packets from the network's containers, for replies
// to them, and for packets to their published ports.
func (f *Forward) rules() []Rule {
	return []Rule{
		{Chain: cniChain, Dst: f.Net, out: f.Link, state: ctStateAnswers, Comment: f.comment(ruleAnswers), Target: TargetAccept},
		{Chain: cniChain, Dst: f.Net, out: f.Link, state: ctStateDNAT, Comment: f.comment(rulePublished), Target: TargetAccept},
		{Chain: cniChain, Src: f.Net, in: f.Link, Comment: f.comment(ruleFrom), Target: TargetAccept},
	}
}

// jumps returns the jump from FORWARD to CNI-FORWARD, and the jump from there to
// the administrator's chain.
func (f *Forward) jumps() []Rule {
	return []Rule{
		{Chain: ForwardChain, Comment: "CNI firewall plugin rules", Target: cniChain},
		{Chain: cniChain, Comment: "CNI firewall plugin admin overrides", Target: f.Admin},
	}
}

// missing returns the changes that add f's missing chains and rules to the table. It
// adds them to st, so that the changes of several Forwards can be made together.
func (f *Forward) missing(st *State) []Op {
	var ops []Op
	need := func(op Op) {
		st.add(op)
		ops = append(ops, op)
	}
	for _, chain := range []string{ForwardChain, cniChain, f.Admin} {
		if st.Chains[chain] == nil {
			need(Op{Kind: makeChain, Chain: chain})
		}
	}
	for _, r := range f.jumps() {
		if !slices.ContainsFunc(st.Rules(r.Chain), func(h *HeldRule) bool { return h.Target == r.Target }) {
			need(Op{Kind: InsertRule, Chain: r.Chain, Rule: r})
		}
	}
	for _, r := range f.rules() {
		if !st.Chains[r.Chain].identities()[f.identity(r.Comment)] {
			need(Op{Kind: AppendRule, Chain: r.Chain, Rule: r})
		}
	}
	return ops
}

// removal returns the changes that delete f's rules. If neither another network nor
// the administrator has rules, it also deletes CNI-FORWARD and the jumps. The
// administrator's rules also concern packets that are not of containers.
func (f *Forward) removal(st *State) []Op {
	if st.Chains[cniChain] == nil {
		return nil
	}
	var ops, jumps []Op
	left := len(st.Rules(f.Admin))
	for _, h := range st.Rules(cniChain) {
		mine := slices.ContainsFunc(f.rules(), func(r Rule) bool { return f.identity(h.Comment) == f.identity(r.Comment) })
		op := Op{Kind: DeleteRule, Chain: cniChain, Held: h}
		switch {
		case mine:
			ops = append(ops, op)
		case h.Jump != "":
			jumps = append(jumps, op)
		default:
			left++
		}
	}
	if left > 0 {
		return ops
	}
	for _, h := range st.Rules(ForwardChain) {
		if h.Target == cniChain {
			jumps = append(jumps, Op{Kind: DeleteRule, Chain: ForwardChain, Held: h})
		}
	}
	return append(append(ops, jumps...), Op{Kind: deleteChain, Chain: cniChain})
}

// Missing lists f's absent rules and chains as iptables' arguments.
func (t *Tables) Missing(ctx context.Context, f *Forward) ([]string, error) {
	st, err := t.Filter(f.family(), f.Legacy).Read(ctx, ForwardChain, cniChain, f.Admin)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, op := range f.missing(st) {
		out = append(out, op.String())
	}
	return out, nil
}

// maxOps limits the changes of one commit. A nftables transaction is one write, which
// must fit into the socket's send buffer.
const maxOps = 1000

// Add adds the missing rules of all fs. It reads each table once, because a node can
// have thousands of rules.
func (t *Tables) Add(ctx context.Context, fs ...*Forward) error {
	type table struct {
		family byte
		legacy bool
	}
	var order []table
	of := map[table][]*Forward{}
	for _, f := range fs {
		key := table{f.family(), f.Legacy}
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], f)
	}
	for _, key := range order {
		if err := t.addTo(ctx, t.Filter(key.family, key.legacy), of[key]); err != nil {
			return err
		}
	}
	return nil
}

// addTo adds the missing rules of fs, which are all for one table.
func (t *Tables) addTo(ctx context.Context, table Table, fs []*Forward) error {
	chains := []string{ForwardChain, cniChain}
	for _, f := range fs {
		if !slices.Contains(chains, f.Admin) {
			chains = append(chains, f.Admin)
		}
	}
	for more := true; more; {
		_, err := Change(ctx, table, chains, func(st *State) []Op {
			var ops []Op
			for _, f := range fs {
				if more = len(ops) >= maxOps; more {
					break
				}
				ops = append(ops, f.missing(st)...)
			}
			return ops
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes f's rules, and the chains and jumps that only they needed.
func (t *Tables) Remove(ctx context.Context, f *Forward) error {
	table := t.Filter(f.family(), f.Legacy)
	ops, err := Change(ctx, table, []string{ForwardChain, cniChain, f.Admin}, f.removal)
	if err == nil && len(ops) > 0 && ops[len(ops)-1].Kind == deleteChain {
		return table.removeUnused(ctx, f.Admin)
	}
	return err
}

// Change commits the changes that ops computes from some chains of a table, or from all if none is named, and
// returns them. It tries again if another program changes the table at the same time.
func Change(ctx context.Context, table Table, chains []string, ops func(*State) []Op) ([]Op, error) {
	for range Tries {
		st, err := table.Read(ctx, chains...)
		if err != nil {
			return nil, err
		}
		all := ops(st)
		if len(all) == 0 {
			return nil, nil
		}
		done, err := table.Commit(ctx, st, all)
		if err != nil || done {
			return all, err
		}
	}
	return nil, fmt.Errorf("%s: %w: it is being changed all the time", table, nlconn.ErrBusy)
}

// Tables gives access to iptables' tables of one network namespace.
type Tables struct {
	NFT *nft.Client
	// Run is nil if iptables-legacy's programs cannot be run.
	Run Runner
}

// Native returns a table of nftables.
func (t *Tables) Native(table nft.Table) Table { return &nftTable{t.NFT, table} }

// Legacy returns a table of iptables-legacy.
func (t *Tables) Legacy(family byte, name string) Table { return &legacyTable{family, name, t.Run} }

// Filter returns the filter table of an address family (NFPROTO_*).
func (t *Tables) Filter(family byte, legacy bool) Table {
	if legacy {
		return t.Legacy(family, "filter")
	}
	return t.Native(nft.Table{Family: family, Name: "filter"})
}

// Families returns the families for which iptables and ip6tables have tables.
func Families() []byte { return []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} }

// FamilyOf returns the family of IPv4 or IPv6.
func FamilyOf(is6 bool) byte {
	if is6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Named returns the tables with a name of some families: those of iptables-nft, and those of iptables-legacy that
// are loaded, can be changed, and may have a chain whose name begins with one of the texts.
func (t *Tables) Named(name string, families []byte, texts ...string) (all []Table) {
	for _, family := range families {
		all = append(all, t.Native(nft.Table{Family: family, Name: name}))
		mentioned := func(text string) bool { return LegacyMentions(family, name, text) }
		if t.Run != nil && IsLegacyLoaded(family, name) && slices.ContainsFunc(texts, mentioned) {
			all = append(all, t.Legacy(family, name))
		}
	}
	return all
}
