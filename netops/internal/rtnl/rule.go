package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
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
	MinBits, Protocol       int
}

// Rules reads the rules of one family with the action table lookup or prohibit.
func (c *Conn) Rules(ctx context.Context, family uint8) ([]Rule, error) {
	all, err := c.AllRules(ctx, family)
	return slices.DeleteFunc(all, func(r Rule) bool { return !r.Prohibit && r.Action != unix.FR_ACT_TO_TBL }), err
}

// AllRules reads the rules of one family in their order.
func (c *Conn) AllRules(ctx context.Context, family uint8) ([]Rule, error) {
	h := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}}
	var all []Rule
	err := c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETRULE, Header: h},
		func() { all = nil },
		func(_ uint16, data []byte) error {
			r, err := parseRule(data)
			all = append(all, r)
			return err
		})
	return all, nlconn.Explain(err, "list rules")
}

// parseRule reads the body of RTM_NEWRULE.
func parseRule(b []byte) (r Rule, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, fmt.Errorf("rule message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	r.Family, r.Table, r.Action = int(b[0]), int(b[4]), b[7]
	r.Not = binary.NativeEndian.Uint32(b[8:])&unix.FIB_RULE_INVERT != 0
	var from, to netip.Addr
	err = nlconn.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.FRA_TABLE:
			r.Table = nlconn.Int(v)
		case unix.FRA_PRIORITY:
			r.Priority = nlconn.Int(v)
		case unix.FRA_SRC:
			from, _ = netip.AddrFromSlice(v)
		case unix.FRA_DST:
			to, _ = netip.AddrFromSlice(v)
		case unix.FRA_FWMARK:
			r.Mark = uint32(nlconn.Int(v))
		case unix.FRA_FWMASK:
			r.Mask = uint32(nlconn.Int(v))
		case unix.FRA_SUPPRESS_PREFIXLEN:
			r.MinBits = int(int32(nlconn.Int(v))) + 1 // -1 means none
		case unix.FRA_PROTOCOL:
			if len(v) > 0 {
				r.Protocol = int(v[0])
			}
		case unix.FRA_IIFNAME:
			r.IIF = nlconn.Text(v)
		case unix.FRA_OIFNAME:
			r.OIF = nlconn.Text(v)
		case unix.FRA_IP_PROTO:
			if len(v) > 0 {
				r.IPProto = v[0]
			}
		case unix.FRA_DPORT_RANGE:
			r.DstPort = uint16(nlconn.Short(v))
		}
		return nil
	})
	if from.IsValid() {
		r.From = netip.PrefixFrom(from, int(b[2]))
	}
	if to.IsValid() {
		r.To = netip.PrefixFrom(to, int(b[1]))
	}
	r.Prohibit = r.Action == unix.FR_ACT_PROHIBIT
	return r, err
}
