package netops

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// RouteRefusal is the error for a packet that a policy rule, or a route in the rule's table, refuses. It wraps
// ErrNotExist.
type RouteRefusal struct {
	To netip.Addr
	// By names the rule, and its table and route if the rule has a table.
	By string
	// Fix is a command that makes the packets use the main table, if that has a route for them.
	Fix string
}

// Accept returns Fix for all packets that a selector of ip-rule(8) selects.
func (r *RouteRefusal) Accept(selector string) string {
	return strings.Replace(r.Fix, "to "+r.To.String(), selector, 1)
}

// Error implements error.
func (r *RouteRefusal) Error() string { return fmt.Sprintf("route to %s: %s refuses it", r.To, r.By) }

// Unwrap returns ErrNotExist.
func (r *RouteRefusal) Unwrap() error { return ErrNotExist }

// refusal finds the policy rule that refuses a packet, which the kernel reports only as an error. It returns nil if
// there is none, or if it is not known because a rule has another action or condition.
func (n *Net) refusal(ctx context.Context, c *rtnl.Conn, p Packet) (*RouteRefusal, error) {
	rules, err := c.AllRules(ctx, rtnl.Family(p.To))
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if !isRuleFor(&r, p) {
			continue
		}
		by := "ip rule " + strconv.Itoa(r.Priority)
		if r.Mark != 0 {
			by += fmt.Sprintf(", fwmark %#x", r.Mark)
		}
		switch r.Action {
		case unix.FR_ACT_TO_TBL:
			route, err := routeIn(ctx, c, p.To, r.Table)
			switch {
			case err != nil || route != nil && routeAction(route.Kind) == "" && route.Kind != unix.RTN_THROW:
				return nil, err
			case route == nil || route.Kind == unix.RTN_THROW || route.Dst.Bits() < r.MinBits:
				continue
			}
			if r.Table == unix.RT_TABLE_MAIN && route.Kind == unix.RTN_UNREACHABLE {
				return nil, nil // it is what "no route" means
			}
			by += fmt.Sprintf(" (lookup %d): %s %s", r.Table, routeAction(route.Kind), route.Dst)
		case unix.FR_ACT_BLACKHOLE, unix.FR_ACT_UNREACHABLE, unix.FR_ACT_PROHIBIT: // the numbers of RTN_*
			by += " (" + routeAction(r.Action) + ")"
		default:
			return nil, nil
		}
		refused := &RouteRefusal{To: p.To, By: by}
		usual, err := routeIn(ctx, c, p.To, unix.RT_TABLE_MAIN)
		if err == nil && usual != nil && usual.Kind == unix.RTN_UNICAST && r.Table != unix.RT_TABLE_MAIN && r.Priority > 1 {
			refused.Fix = fmt.Sprintf("ip %s rule add to %s lookup main priority %d", map[bool]string{true: "-6", false: "-4"}[p.To.Is6()], p.To, r.Priority-1)
		}
		return refused, err
	}
	return nil, nil
}

// isRuleFor reports whether a policy rule matches a packet without a known protocol.
func isRuleFor(r *rtnl.Rule, p Packet) bool {
	in := p.In
	if in == "" {
		in = "lo" // the kernel's device of a packet that this namespace sends
	}
	matches := (!r.From.IsValid() || p.From.IsValid() && r.From.Contains(p.From)) && (!r.To.IsValid() || r.To.Contains(p.To)) &&
		(r.IIF == "" || r.IIF == in) && (r.OIF == "" || r.OIF == p.Out) && p.Mark&r.Mask == r.Mark && r.IPProto == 0 && r.DstPort == 0
	return matches != r.Not
}

// routeAction returns iproute2's name of a route's type that refuses packets, or "".
func routeAction(kind uint8) string {
	return map[uint8]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}[kind]
}

// routeIn returns the route of any type to an address in one table, or nil.
func routeIn(ctx context.Context, c *rtnl.Conn, to netip.Addr, table int) (best *rtnl.Route, err error) {
	m := nlconn.Message{Kind: unix.RTM_GETROUTE, Header: &nl.RtMsg{RtMsg: unix.RtMsg{Family: rtnl.Family(to)}}}
	m.Uint32(unix.RTA_TABLE, uint32(table))
	err = c.Dump(ctx, m, func() { best = nil }, func(_ uint16, data []byte) error {
		r, _, err := rtnl.ParseHops(data)
		longer := best == nil || r.Dst.Bits() > best.Dst.Bits() || r.Dst.Bits() == best.Dst.Bits() && r.Priority < best.Priority
		if err == nil && r.Table == table && r.Dst.IsValid() && r.Dst.Contains(to) && longer {
			best = &r
		}
		return err
	})
	if nlconn.IsAbsent(err) { // no such table
		return nil, nil
	}
	return best, nlconn.Explain(err, fmt.Sprintf("list routes of table %d", table))
}
