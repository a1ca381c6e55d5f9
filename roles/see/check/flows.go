package check

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
)

// The kernel sends all packets of a tracked UDP connection where it sent the first one. A client that keeps its port keeps such a
// connection alive, also if the first packet came before the rules of a published port, or while another container had the port.

// Leads reports whether a connection leads to one of an attachment's addresses, or need not: the port has conditions, or is not
// published at a loopback address.
func Leads(c netops.Connection, addresses []netip.Prefix, made []netops.Change) bool {
	hasConditions := func(c netops.Change) bool {
		e, is := c.Do.Object.(*netops.Element)
		return is && strings.Contains(e.Set, "_if")
	}
	isFirst := c.Server == c.To.Addr() && (c.Server.IsLoopback() || slices.ContainsFunc(made, hasConditions))
	return isFirst || slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr() == c.Server })
}

// FlowsOf selects a connection and those of other clients to the same place.
func FlowsOf(c netops.Connection) *netops.Flows {
	return &netops.Flows{In: netops.Host, Proto: "udp", Port: c.To.Port(), Dst: c.To.Addr(), ReplySrc: c.Server}
}

// Forget returns the plan that deletes tracked connections.
func Forget(f *netops.Flows) netops.Plan {
	return netops.Plan{Changes: []netops.Change{{Do: netops.Step{Verb: netops.VerbDel, Object: f}}}}
}
