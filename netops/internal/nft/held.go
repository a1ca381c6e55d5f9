package nft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HeldRule is a rule as the kernel reports it, usually of another program.
type HeldRule struct {
	Table  Table
	Chain  string
	Handle uint64
	// Comment is nft's comment, or the comment of iptables' match "comment".
	Comment string
	// Verdict has nft's syntax ("accept", "jump NAME"). It is empty if the rule has
	// none, or has a target of iptables.
	Verdict string
	// Expressions has the rule's expressions except counters.
	Expressions []Expression
}

// Expression is one expression of a rule.
type Expression struct {
	// Name is the kernel's name of the expression. An iptables match has the name of
	// the match instead of "match".
	Name  string
	attrs []byte
}

// Attr returns the value of an attribute, or nil if it is absent.
func (e *Expression) Attr(kind uint16) []byte {
	v, _ := nlconn.Find(e.attrs, kind)
	return v
}

// Number returns a 32-bit attribute. ok is false if it is absent.
func (e *Expression) Number(kind uint16) (v uint32, ok bool) {
	b := e.Attr(kind)
	return nlconn.Net32(b), len(b) == 4
}

// Clone returns a copy that stays valid.
func (e Expression) Clone() Expression {
	e.attrs = bytes.Clone(e.attrs)
	return e
}

// Deletion returns the request that deletes the rule.
func (r *HeldRule) Deletion() nlconn.Message {
	m := r.Table.RuleMessage(unix.NFT_MSG_DELRULE, 0, r.Chain)
	m.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, r.Handle))
	return m
}

// Rules reads the rules of a chain, or of the whole table if the name is empty. It
// returns the results of read. The expressions of a rule are valid only during the
// call of read. An absent table or chain has no rules.
func Rules[T any](ctx context.Context, c *Client, t Table, chain string, read func(HeldRule) (T, error)) ([]T, error) {
	m := t.RuleMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, chain)
	all, err := List(ctx, c, m, func(attrs []byte) (v T, selected bool, err error) {
		r, err := DecodeRule(t, attrs)
		if err == nil {
			v, err = read(r)
		}
		return v, true, err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, err
}

// DecodeRule reads the attributes of one NFT_MSG_NEWRULE. The expressions are slices
// of attrs.
func DecodeRule(t Table, attrs []byte) (HeldRule, error) {
	r := HeldRule{Table: t}
	var userData, expressions []byte
	err := nlconn.ReadAttrs(attrs, []nlconn.Attr{
		{Kind: unix.NFTA_RULE_CHAIN, At: &r.Chain},
		{Kind: unix.NFTA_RULE_HANDLE, At: (*nlconn.BigEndian64)(&r.Handle)},
		{Kind: unix.NFTA_RULE_USERDATA, At: &userData},
		{Kind: unix.NFTA_RULE_EXPRESSIONS, At: &expressions},
	})
	r.Comment = LabelOf(userData)
	if err != nil {
		return r, err
	}
	return r, nlconn.EachAttr(expressions, func(_ uint16, v []byte) error { return r.decodeExpression(v) })
}

// decodeExpression reads one NFTA_LIST_ELEM of a rule's expressions.
func (r *HeldRule) decodeExpression(attrs []byte) (err error) {
	name, err := nlconn.Find(attrs, unix.NFTA_EXPR_NAME)
	if err != nil {
		return err
	}
	e := Expression{Name: nlconn.Text(name)}
	e.attrs, err = nlconn.Find(attrs, unix.NFTA_EXPR_DATA)
	if err != nil {
		return err
	}
	switch e.Name {
	case "counter":
		return nil
	case "match":
		e.Name = nlconn.Text(e.Attr(unix.NFTA_MATCH_NAME))
		if e.Name == "comment" { // written by iptables before 1.8.10
			r.Comment = nlconn.Text(e.Attr(unix.NFTA_MATCH_INFO))
		}
	case "immediate":
		if register, ok := e.Number(unix.NFTA_IMMEDIATE_DREG); ok && register == unix.NFT_REG_VERDICT {
			var verdict []byte
			verdict, err = DecodeData(e.Attr(unix.NFTA_IMMEDIATE_DATA))
			r.Verdict = VerdictText(verdict)
		}
	}
	r.Expressions = append(r.Expressions, e)
	return errors.Join(err, nlconn.EachAttr(e.attrs, func(uint16, []byte) error { return nil }))
}
