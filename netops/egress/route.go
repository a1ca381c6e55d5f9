package egress

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// protocol marks the rules and the routes. It is overlay.Protocol.
const protocol = 142

// rulePriority is that of the rules: before those that select tables by addresses.
const rulePriority = 142

// ownPriority is that of a rule for what the node itself sends with a mark: a VXLAN device gives the packets that carry others the marks of these.
const ownPriority = rulePriority - 1

func ownRule(family uint8) rtnl.Rule {
	return rtnl.Rule{
		Action: unix.FR_ACT_TO_TBL, Family: int(family), Priority: ownPriority, Mark: markSet, Mask: markSet, IIF: "lo", Table: unix.RT_TABLE_MAIN, Protocol: protocol,
	}
}

// lastMetric is that of the route that refuses packets if the one to the holder is gone.
const lastMetric = 1<<32 - 1

// firstTable is the number of the routing table for index 0.
const firstTable = protocol << 16

// routing is what leads the packets of one address: a rule and a table, of one family.
type routing struct {
	v6    bool
	index int
}

func (r routing) family() uint8 {
	if r.v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (r routing) rule() rtnl.Rule {
	return rtnl.Rule{
		Action: unix.FR_ACT_TO_TBL, Family: int(r.family()), Priority: rulePriority, Mark: markOf(r.index), Mask: markBits,
		Table: firstTable + r.index, Protocol: protocol,
	}
}

// routes returns the routes of a table: the one to the holder, and the one that refuses packets without it.
func (a *Address) routes() (to, last rtnl.Route) {
	to = rtnl.Route{
		Table: firstTable + a.Index, Kind: unix.RTN_UNICAST, Protocol: protocol, Dst: netip.PrefixFrom(unspecified(a.Addr), 0), Via: a.Via, Link: a.Link, OnLink: true, Priority: 1,
	}
	last = rtnl.Route{Table: to.Table, Kind: unix.RTN_UNREACHABLE, Protocol: protocol, Dst: to.Dst, Priority: lastMetric}
	return to, last
}

// ensureRoutes adds the rules and routes that are missing, and returns the requests that delete those that are not wanted.
func (k *Kernel) ensureRoutes(ctx context.Context, c *rtnl.Conn, addresses []Address) (stale []nlconn.Message, err error) {
	want := map[routing]*Address{}
	for i := range addresses {
		if a := &addresses[i]; !a.Held && a.Via.IsValid() {
			want[routing{a.Addr.Is6(), a.Index}] = a
		}
	}
	have := map[routing]rtnl.Rule{}
	var add []nlconn.Message
	for _, v6 := range []bool{false, true} {
		rules, err := c.AllRules(ctx, routing{v6: v6}.family())
		if err != nil && !errors.Is(err, nlconn.ErrNotSupported) {
			return nil, err
		}
		own := ownRule(routing{v6: v6}.family())
		hasOwn := slices.ContainsFunc(rules, func(r rtnl.Rule) bool { return r.Priority == ownPriority && r.Protocol == protocol && r.IIF == own.IIF })
		wantsOwn := slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(r routing) bool { return r.v6 == v6 })
		switch {
		case wantsOwn && !hasOwn:
			add = append(add, addRule(own))
		case hasOwn && !wantsOwn:
			stale = append(stale, nlconn.Message{Kind: unix.RTM_DELRULE, Body: own.Append(nil)})
		}
		for _, r := range rules {
			if is := (routing{v6, r.Table - firstTable}); is.index > 0 && is.index <= MaxAddresses && r.Priority == rulePriority {
				have[is] = r
			}
		}
	}
	for i := 1; i <= MaxAddresses; i++ {
		for _, v6 := range []bool{false, true} {
			is := routing{v6, i}
			_, ruled := have[is]
			if want[is] == nil && !ruled && k.swept {
				continue
			}
			more, old, err := changedRoutes(ctx, c, is, want[is])
			if err != nil {
				return nil, err
			}
			add, stale = append(add, more...), append(stale, old...)
		}
	}
	for d := range keyed.Maps(have, want, func(r rtnl.Rule, _ *Address) bool { return true }) {
		r := d.Key.rule()
		if d.Kind == keyed.Remove {
			stale = append(stale, nlconn.Message{Kind: unix.RTM_DELRULE, Body: r.Append(nil)})
		} else {
			add = append(add, addRule(r))
		}
	}
	if len(add) == 0 {
		return stale, nil
	}
	return stale, k.write(ctx, c, "add routes of egress addresses", add)
}

func addRule(r rtnl.Rule) nlconn.Message {
	return nlconn.Message{Kind: unix.RTM_NEWRULE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: r.Append(nil)}
}

// changedRoutes returns the requests after which a table has the routes of an address, of none for nil.
func changedRoutes(ctx context.Context, c *rtnl.Conn, is routing, want *Address) (add, stale []nlconn.Message, err error) {
	var to, last rtnl.Route
	if want != nil {
		to, last = want.routes()
	}
	hasTo, hasLast := want == nil, want == nil
	for _, kind := range []uint8{unix.RTN_UNICAST, unix.RTN_UNREACHABLE} {
		have, err := c.RoutesOf(ctx, is.family(), rtnl.RoutesRequest{Table: firstTable + is.index, Kind: kind})
		if err != nil {
			return nil, nil, err
		}
		for _, r := range have {
			switch {
			case want != nil && kind == unix.RTN_UNREACHABLE && r.Priority == lastMetric:
				hasLast = true
			case want != nil && kind == unix.RTN_UNICAST && r.Via == to.Via && r.Link == to.Link && r.OnLink:
				hasTo = true
			case want != nil && kind == unix.RTN_UNICAST && r.Priority == to.Priority: // it is replaced
			default:
				stale = append(stale, nlconn.Message{Kind: unix.RTM_DELROUTE, Body: r.Append(nil)})
			}
		}
	}
	if !hasLast {
		add = append(add, nlconn.Message{Kind: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Body: last.Append(nil)})
	}
	if !hasTo {
		add = append(add, nlconn.Message{Kind: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Body: to.Append(nil)})
	}
	return add, stale, nil
}

// unspecified returns the unspecified address of the family of a.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
