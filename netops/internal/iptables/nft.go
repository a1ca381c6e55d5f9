package iptables

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The comment of a rule has the same tag in its user data as the comment of an
// element: NFTNL_UDATA_RULE_COMMENT equals NFTNL_UDATA_SET_ELEM_COMMENT.
// iptables-nft reads it too.

// TargetName is NFTA_TARGET_NAME of linux/netfilter/nf_tables_compat.h.
const TargetName = 1

// nftFilter is the filter table of iptables-nft. All its rules must have a form
// that iptables reads: iptables refuses a table with a rule that it cannot print.
type nftFilter struct {
	NFT   *nft.Client
	table nft.Table
}

// Read reads the chains FORWARD, CNI-FORWARD and admins with their rules.
func (t *nftFilter) Read(ctx context.Context, admins ...string) (*State, error) {
	conn, err := t.NFT.Conn()
	if err != nil {
		return nil, err
	}
	// Read the generation first. The kernel refuses a commit with this generation
	// if nftables changed after this.
	st := &State{Chains: map[string]*Chain{}}
	st.generation, err = conn.Generation(ctx)
	if err != nil {
		return nil, t.describe(err)
	}
	return st, t.describe(t.readChains(ctx, st, append([]string{ForwardChain, cniChain}, admins...)...))
}

func (t *nftFilter) describe(err error) error {
	return nlconn.Explain(err, fmt.Sprintf("nftables table %s", t.table))
}

func (t *nftFilter) readChains(ctx context.Context, st *State, names ...string) error {
	for _, name := range names {
		if name == "" { // there may be no chain of the administrator
			continue
		}
		c, err := t.readChain(ctx, name)
		if err == nil && c != nil {
			st.Chains[name] = c
			c.Rules, err = nft.Rules(ctx, t.NFT, t.table, name, heldRule)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readChain reads a chain without its rules. It returns nil if the chain is
// absent.
func (t *nftFilter) readChain(ctx context.Context, name string) (*Chain, error) {
	c := &Chain{}
	var damaged error
	conn, err := t.NFT.Conn()
	if err != nil {
		return nil, err
	}
	err = conn.Get(ctx, t.table.ChainMessage(unix.NFT_MSG_GETCHAIN, 0, name), func(attrs []byte) {
		var read BaseChain
		read, _, damaged = decodeBaseChain(t.table.Family, attrs)
		c.drops = read.Drops
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return c, errors.Join(err, damaged)
}

// heldRule reads a rule's target, and whether the rule has a condition.
func heldRule(r nft.HeldRule) (*HeldRule, error) {
	h := &HeldRule{handle: r.Handle, Comment: nlconn.Printable(r.Comment), matchesAll: true}
	word, chain, _ := strings.Cut(r.Verdict, " ")
	h.Target = cmp.Or(chain, strings.ToUpper(word))
	for _, e := range r.Expressions {
		switch e.Name {
		case "immediate", "comment":
		case "target":
			h.Target = nlconn.Text(e.Attr(TargetName))
		case "reject":
			h.Target = "REJECT"
		default:
			h.matchesAll = false
		}
	}
	return h, nil
}

// Commit makes all changes in one transaction. It returns false if nftables changed
// after st was read.
func (t *nftFilter) Commit(ctx context.Context, st *State, ops []Op) (bool, error) {
	var msgs []nlconn.Message
	for i, op := range ops {
		if i == 0 && op.Kind == makeChain {
			msgs = append(msgs, t.table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE))
		}
		m, err := t.opMessage(op)
		if err != nil {
			return false, err
		}
		msgs = append(msgs, m)
	}
	conn, err := t.NFT.Conn()
	if err != nil {
		return false, err
	}
	err = conn.Commit(ctx, st.generation, msgs...)
	switch {
	case errors.Is(err, unix.ERESTART):
		return false, nil
	case errors.Is(err, unix.ENOENT): // the generation is unchanged, so the chains exist
		return false, fmt.Errorf("nftables table %s: %w: the kernel lacks what iptables' rules are made of, see what 'modprobe -a nft_compat xt_conntrack', and before Linux 5.17 'modprobe nft_counter', says", t.table, nlconn.ErrNotSupported)
	}
	return err == nil, t.describe(err)
}

func (t *nftFilter) opMessage(op Op) (nlconn.Message, error) {
	switch op.Kind {
	case makeChain:
		c := nft.Chain{Name: op.Chain}
		if op.Chain == ForwardChain {
			c = nft.Chain{Name: op.Chain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: nft.PriorityFilter}
		}
		return c.Message(t.table), nil
	case deleteChain:
		return t.table.ChainMessage(unix.NFT_MSG_DELCHAIN, 0, op.Chain), nil
	case DeleteRule:
		held := nft.HeldRule{Table: t.table, Chain: op.Chain, Handle: op.Held.handle}
		return held.Deletion(), nil
	}
	flags := uint16(unix.NLM_F_CREATE)
	if op.Kind == AppendRule {
		flags |= unix.NLM_F_APPEND
	}
	m := t.table.RuleMessage(unix.NFT_MSG_NEWRULE, flags, op.Chain)
	if op.Held != nil {
		m.Bytes(unix.NFTA_RULE_POSITION, binary.BigEndian.AppendUint64(nil, op.Held.handle))
	}
	err := nft.AddExpressions(&m, t.table.Family, op.Rule.exprs())
	m.Bytes(unix.NFTA_RULE_USERDATA, nft.LabelUserData(op.Rule.Comment))
	return m, err
}

// exprs returns the rule's expressions in the form that iptables-nft writes.
func (r *Rule) exprs() []expr.Any {
	var out []expr.Any
	for _, l := range []struct {
		key  expr.MetaKey
		name string
	}{{expr.MetaKeyIIFNAME, r.in}, {expr.MetaKeyOIFNAME, r.out}} {
		if l.name == "" {
			continue
		}
		data := []byte(l.name + "\x00")
		if begin, isPattern := strings.CutSuffix(l.name, "*"); isPattern {
			data = []byte(begin)
		}
		out = append(out, &expr.Meta{Key: l.key, Register: unix.NFT_REG_1}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: data})
	}
	out = append(out, matchPrefix(r.Src, 12, 8)...)
	out = append(out, matchPrefix(r.Dst, 16, 24)...)
	if r.state != 0 {
		info := xt.Unknown(conntrackInfo(r.state))
		out = append(out, &expr.Match{Name: "conntrack", Rev: 3, Info: &info})
	}
	verdict := &expr.Verdict{Kind: expr.VerdictJump, Chain: r.Target}
	if r.Target == TargetAccept {
		verdict = &expr.Verdict{Kind: expr.VerdictAccept}
	}
	return append(out, &expr.Counter{}, verdict)
}

// matchPrefix compares an address with a prefix. offset4 is the address's offset
// in the IPv4 header (RFC 791 §3.1), offset6 in the IPv6 header (RFC 8200 §3).
func matchPrefix(p netip.Prefix, offset4, offset6 uint32) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	offset, size := offset4, 4
	if p.Addr().Is6() {
		offset, size = offset6, 16
	}
	load := &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(size), DestRegister: unix.NFT_REG_1}
	cmp := &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: p.Addr().AsSlice()}
	if p.Bits() == 8*size {
		return []expr.Any{load, cmp}
	}
	mask := &expr.Bitwise{
		SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(size),
		Mask: net.CIDRMask(p.Bits(), 8*size), Xor: make([]byte, size),
	}
	return []expr.Any{load, mask, cmp}
}

// conntrackInfo returns struct xt_conntrack_mtinfo3 that matches states.
// match_flags and state_mask follow eight addresses and seven numbers.
func conntrackInfo(states uint16) []byte {
	const size, matchFlags, stateMask, matchState = 168, 146, 150, 1
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[matchFlags:], matchState)
	binary.NativeEndian.PutUint16(info[stateMask:], states)
	return info
}
