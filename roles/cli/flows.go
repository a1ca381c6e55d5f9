package cli

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/store"
)

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
		if err != nil || check.Leads(c, a.records[owner].Addresses, made) {
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
		f := check.FlowsOf(c)
		if slices.ContainsFunc(one.found, func(d difference) bool { return d.Object == f.String() }) {
			continue
		}
		d := one.add(f.String(), "absent", fmt.Sprintf("used by %s since before the container came", netip.AddrPortFrom(c.Client, c.ClientPort)), fixRepair)
		d.of, d.Changes = f, check.Forget(f).Changes
		one.plan.Changes = append(one.plan.Changes, d.Changes...)
	}
}
