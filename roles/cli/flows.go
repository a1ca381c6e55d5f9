package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// The kernel sends all packets of a tracked UDP connection where it sent the first one. A client that keeps its port keeps such a
// connection alive, also if the first packet came before the rules of a published port, or while another container had the port.

// leads reports whether a connection leads to one of an attachment's addresses, or need not: the port has conditions, or is not
// published at a loopback address.
func leads(c netops.Connection, addresses []netip.Prefix, made []netops.Change) bool {
	hasConditions := func(c netops.Change) bool {
		e, is := c.Do.Object.(*netops.Element)
		return is && strings.Contains(e.Set, "_if")
	}
	isFirst := c.Server == c.To.Addr() && (c.Server.IsLoopback() || slices.ContainsFunc(made, hasConditions))
	return isFirst || slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr() == c.Server })
}

// staleFlows returns the connections to published ports that lead to no address of the attachment that publishes them, by attachment.
func (a *auditor) staleFlows() (map[store.Key][]netops.Connection, error) {
	if len(a.published) == 0 || a.after != nil {
		return nil, nil
	}
	all, err := a.host.Datagrams()
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, l := range a.links {
		for _, p := range l.Addresses {
			local[p.Addr()] = true
		}
	}
	stale, judged := map[store.Key][]netops.Connection{}, map[netip.AddrPort]bool{} // whether another program translates them
	for _, c := range all {
		i := slices.IndexFunc(a.published, func(f attachment.PublishedFlows) bool { return f.Contains(c, local) })
		if i < 0 || a.records[a.published[i].Owner] == nil {
			continue
		}
		owner := a.published[i].Owner
		made, err := attachment.Changes(a.records[owner])
		if err != nil || leads(c, a.records[owner].Addresses, made) {
			continue // a record that cannot be decoded is a fault of its own
		}
		if _, known := judged[c.To]; !known {
			way, _ := a.host.Way(netops.Packet{To: c.Client}) // the link of the answers
			rule, err := a.host.TranslatedBefore(way.Link, c.To, "udp")
			if err != nil {
				return nil, err
			}
			judged[c.To] = rule != nil
		}
		if !judged[c.To] {
			stale[owner] = append(stale[owner], c)
		}
	}
	return stale, nil
}

// addFlows adds the stale connections of an attachment, and plans to delete them.
func (a *auditor) addFlows(one *audited) {
	for _, c := range a.stale[one.Key] {
		f := flowsOf(c)
		if slices.ContainsFunc(one.found, func(d difference) bool { return d.Object == f.String() }) {
			continue
		}
		d := one.add(f.String(), "absent", fmt.Sprintf("used by %s since before the container came", netip.AddrPortFrom(c.Client, c.ClientPort)), fixRepair)
		d.of, d.Changes = f, forget(f).Changes
		one.plan.Changes = append(one.plan.Changes, d.Changes...)
	}
}

// flowsOf selects a connection and those of other clients to the same place.
func flowsOf(c netops.Connection) *netops.Flows {
	return &netops.Flows{In: netops.Host, Proto: "udp", Port: c.To.Port(), Dst: c.To.Addr(), ReplySrc: c.Server}
}

// forget returns the plan that deletes tracked connections.
func forget(f *netops.Flows) netops.Plan {
	return netops.Plan{Changes: []netops.Change{{Do: netops.Step{Verb: netops.VerbDel, Object: f}}}}
}

// passesTracked reports whether no tracked connection of the client leads its packets to a port elsewhere than the rules do.
// fix is the command that deletes those which do.
func (w *walker) passesTracked(to netip.AddrPort, fix string, leads func(netops.Connection) bool) bool {
	if !w.isUDP {
		return true
	}
	all, err := w.host.Datagrams()
	for _, c := range all {
		isClient := c.Client == w.found.From || !w.found.From.IsValid() && w.isHostAddress(c.Client)
		switch {
		case c.To != to || !isClient || leads(c):
		case w.forget:
			err = errors.Join(err, w.net.Apply(w.ctx, forget(flowsOf(c)), nil))
		default:
			where := "to " + c.Server.String()
			if c.Server == to.Addr() {
				where = "to " + hostName + " itself"
			}
			w.stop(fix, "the kernel sends the packets from port %d %s, as it did with the first one: it tracks them as one connection", c.ClientPort, where)
			w.isTracked = true
			return false
		}
	}
	return !w.fail(err)
}
