package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Rule is a policy rule. Action is FR_ACT_*. Not is true for a rule that matches the other packets.
type Rule struct {
	Action                  uint8
	Not                     bool
	Family, Priority, Table int
	From, To                netip.Prefix
	IIF, OIF                string
	Mark, Mask              uint32
	Prohibit                bool
	IPProto                 uint8
	DstPort                 uint16
	MinBits                 int
	Protocol                uint8
}

// Rules reads the rules of one family with the action table lookup or prohibit.
func (c *Conn) Rules(ctx context.Context, family uint8) ([]Rule, error) {
	all, err := c.AllRules(ctx, family)
	return slices.DeleteFunc(all, func(r Rule) bool { return !r.Prohibit && r.Action != unix.FR_ACT_TO_TBL }), err
}

// AllRules reads the rules of one family in their order.
func (c *Conn) AllRules(ctx context.Context, family uint8) ([]Rule, error) {
	m := nlconn.Message{Kind: unix.RTM_GETRULE, Body: append(nlconn.Body{family}, make([]byte, unix.SizeofRtMsg-1)...)}
	all, err := nlconn.List(ctx, c.Conn, m, parseRule)
	return all, nlconn.Explain(err, "list rules")
}

// Append appends the body of a request for the rule.
func (r *Rule) Append(b nlconn.Body) nlconn.Body {
	from, to := r.From.Masked(), r.To.Masked()
	action := uint8(unix.FR_ACT_TO_TBL)
	if r.Prohibit {
		action = unix.FR_ACT_PROHIBIT
	}
	b = append(b, uint8(r.Family), uint8(max(to.Bits(), 0)), uint8(max(from.Bits(), 0)), 0, 0, 0, 0, action, 0, 0, 0, 0)
	source, target, bits, ports := from.Addr(), to.Addr(), int32(r.MinBits-1), []byte(nil)
	if r.MinBits == 0 {
		bits = 0
	}
	if r.DstPort != 0 { // struct fib_rule_port_range: first and last
		ports = binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, r.DstPort), r.DstPort)
	}
	b.Attrs(r.attrs(&source, &target, &bits, &ports))
	return b
}

// attrs describes the attributes of struct fib_rule_hdr, which has the layout of struct rtmsg.
func (r *Rule) attrs(from, to *netip.Addr, bits *int32, ports *[]byte) []nlconn.Attr {
	return []nlconn.Attr{
		{Kind: unix.FRA_TABLE, At: &r.Table},
		{Kind: unix.FRA_PRIORITY, At: &r.Priority},
		{Kind: unix.FRA_SRC, At: from},
		{Kind: unix.FRA_DST, At: to},
		{Kind: unix.FRA_FWMARK, At: &r.Mark},
		{Kind: unix.FRA_FWMASK, At: &r.Mask},
		{Kind: unix.FRA_SUPPRESS_PREFIXLEN, At: bits, Zero: r.MinBits != 0},
		{Kind: unix.FRA_PROTOCOL, At: &r.Protocol},
		{Kind: unix.FRA_IIFNAME, At: &r.IIF},
		{Kind: unix.FRA_OIFNAME, At: &r.OIF},
		{Kind: unix.FRA_IP_PROTO, At: &r.IPProto},
		{Kind: unix.FRA_DPORT_RANGE, At: ports},
	}
}

// parseRule reads the body of RTM_NEWRULE. ok is false only with an error.
func parseRule(b []byte) (r Rule, ok bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, false, fmt.Errorf("rule message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	r.Family, r.Table, r.Action = int(b[0]), int(b[4]), b[7]
	r.Not = binary.NativeEndian.Uint32(b[8:])&unix.FIB_RULE_INVERT != 0
	var from, to netip.Addr
	var ports []byte
	bits := int32(-1) // none
	err = nlconn.ReadAttrs(b[unix.SizeofRtMsg:], r.attrs(&from, &to, &bits, &ports))
	r.From, r.To = prefixOf(from, b[2]), prefixOf(to, b[1])
	r.MinBits, r.DstPort = int(bits)+1, uint16(nlconn.Short(ports))
	r.Prohibit = r.Action == unix.FR_ACT_PROHIBIT
	return r, err == nil, err
}

// prefixOf returns the zero Prefix for the zero Addr.
func prefixOf(a netip.Addr, bits uint8) netip.Prefix {
	if !a.IsValid() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, int(bits))
}
