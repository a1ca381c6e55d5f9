package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The comment of a rule has the same tag in its user data as the comment of an
// element: NFTNL_UDATA_RULE_COMMENT equals NFTNL_UDATA_SET_ELEM_COMMENT.
// iptables-nft reads it too.

// TargetName is NFTA_TARGET_NAME of linux/netfilter/nf_tables_compat.h.
const TargetName = 1

// nftTable is a table of nftables. All rules of iptables-nft's tables must have a form
// that iptables reads: iptables refuses a table with a rule that it cannot print.
type nftTable struct {
	nft   *nft.Client
	table nft.Table
}

func (t *nftTable) String() string { return "nftables table " + t.table.String() }

func (t *nftTable) describe(err error) error { return nlconn.Explain(err, t.String()) }

func (t *nftTable) Has(ctx context.Context, chain string) (bool, error) {
	has, err := t.nft.HasChain(ctx, t.table, chain)
	return has, nlconn.Explain(err, fmt.Sprintf("look for chain %s in %s", chain, t))
}

func (t *nftTable) Read(ctx context.Context, chains ...string) (*State, error) {
	// Read the generation first. The kernel refuses a commit with this generation
	// if nftables changed after this.
	generation, err := t.nft.Generation(ctx)
	if err != nil {
		return nil, t.describe(err)
	}
	if len(chains) == 0 {
		if chains, err = t.chainNames(ctx); err != nil {
			return nil, err
		}
	}
	st := &State{Chains: map[string]*Chain{}, generation: generation}
	for _, name := range chains {
		if name == "" { // there may be no chain of the administrator
			continue
		}
		c, err := t.readChain(ctx, name)
		if err != nil {
			return nil, t.describe(err)
		}
		if c != nil {
			st.Chains[name] = c
		}
	}
	return st, nil
}

// readChain reads a chain. It returns nil if the chain is absent.
func (t *nftTable) readChain(ctx context.Context, name string) (*Chain, error) {
	have, err := t.nft.Chain(ctx, t.table, name)
	if err != nil || have == nil {
		return nil, err
	}
	rules, err := nft.Rules(ctx, t.nft, t.table, name, ReadRule)
	return &Chain{drops: have.Drops, Rules: rules}, err
}

// chainNames lists the table's chains.
func (t *nftTable) chainNames(ctx context.Context) (names []string, err error) {
	// A kernel before 6.3 lists the chains of all tables.
	chains, err := t.nft.Chains(ctx, t.table.Family, func(c *nft.HeldChain) bool { return c.Table == t.table })
	for _, c := range chains {
		names = append(names, c.Name)
	}
	return names, t.describe(err)
}

// Commit makes all changes in one transaction. It returns false if nftables changed
// after st was read.
func (t *nftTable) Commit(ctx context.Context, st *State, ops []Op) (bool, error) {
	var msgs []nlconn.Message
	for i, op := range ops {
		if i == 0 && op.Kind == makeChain {
			msgs = append(msgs, t.table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE))
		}
		msgs = append(msgs, t.opMessage(op))
	}
	err := t.nft.Commit(ctx, st.generation, msgs...)
	switch {
	case errors.Is(err, unix.ERESTART):
		return false, nil
	case errors.Is(err, unix.ENOENT): // the generation is unchanged, so the chains exist
		return false, fmt.Errorf("%s: %w: the kernel lacks what iptables' rules are made of, see what 'modprobe -a nft_compat xt_conntrack', and before Linux 5.17 'modprobe nft_counter', says", t, nlconn.ErrNotSupported)
	}
	return err == nil, t.describe(err)
}

func (t *nftTable) opMessage(op Op) nlconn.Message {
	switch op.Kind {
	case makeChain:
		c := nft.Chain{Name: op.Chain}
		if op.Chain == ForwardChain {
			c = nft.Chain{Name: op.Chain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: nft.PriorityFilter}
		}
		return c.Message(t.table)
	case DeleteTable:
		return t.table.Message(unix.NFT_MSG_DELTABLE, 0)
	case deleteChain, PurgeChain:
		return t.table.ChainMessage(unix.NFT_MSG_DELCHAIN, 0, op.Chain)
	case DeleteRule:
		held := nft.HeldRule{Table: t.table, Chain: op.Chain, Handle: op.Held.handle}
		return held.Deletion()
	}
	flags := uint16(unix.NLM_F_CREATE)
	if op.Kind == AppendRule {
		flags |= unix.NLM_F_APPEND
	}
	m := t.table.RuleMessage(unix.NFT_MSG_NEWRULE, flags, op.Chain)
	if op.Held != nil {
		m.Bytes(unix.NFTA_RULE_POSITION, binary.BigEndian.AppendUint64(nil, op.Held.handle))
	}
	nft.NewRule(op.Rule.encode, nft.Comment(op.Rule.Comment)).Fill(&m)
	return m
}

// encode appends the rule's expressions in the form that iptables-nft writes: it loads each field into the first register of 16 bytes.
func (r *Rule) encode(b *nft.Builder) {
	for _, l := range []struct {
		key  uint32
		name string
	}{{unix.NFT_META_IIFNAME, r.in}, {unix.NFT_META_OIFNAME, r.out}} {
		if l.name == "" {
			continue
		}
		data := []byte(l.name + "\x00")
		if begin, isPattern := strings.CutSuffix(l.name, "*"); isPattern {
			data = []byte(begin)
		}
		b.Meta(l.key, unix.NFT_REG_1)
		b.Compare(unix.NFT_CMP_EQ, unix.NFT_REG_1, data)
	}
	matchPrefix(b, r.Src, 12, 8)
	matchPrefix(b, r.Dst, 16, 24)
	if r.state != 0 {
		b.Add("match", func() {
			b.Text(unix.NFTA_MATCH_NAME, "conntrack")
			b.Net32(unix.NFTA_MATCH_REV, 3)
			b.Bytes(unix.NFTA_MATCH_INFO, conntrackInfo(r.state))
		})
	}
	nft.Counter()(b)
	if r.Target == TargetAccept {
		nft.Accept()(b)
	} else {
		nft.Jump(r.Target)(b)
	}
}

// matchPrefix compares an address with a prefix. offset4 is the address's offset
// in the IPv4 header (RFC 791 §3.1), offset6 in the IPv6 header (RFC 8200 §3).
func matchPrefix(b *nft.Builder, p netip.Prefix, offset4, offset6 uint32) {
	if !p.IsValid() {
		return
	}
	offset, size := offset4, 4
	if p.Addr().Is6() {
		offset, size = offset6, 16
	}
	b.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(size), unix.NFT_REG_1)
	if p.Bits() < 8*size {
		b.Mask(unix.NFT_REG_1, net.CIDRMask(p.Bits(), 8*size), nil)
	}
	b.Compare(unix.NFT_CMP_EQ, unix.NFT_REG_1, p.Addr().AsSlice())
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
