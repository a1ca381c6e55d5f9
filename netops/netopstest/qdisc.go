package netopstest

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// qdiscs lists the queueing disciplines that a program added, with the number of
// their filters. The kernel's default qdiscs have no handle.
func qdiscs(names map[int]string) ([]string, error) {
	all, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, q := range all {
		a := q.Attrs()
		if a.Handle == netlink.HANDLE_NONE {
			continue
		}
		line := fmt.Sprintf("qdisc %s %s dev %s", q.Type(), netlink.HandleStr(a.Handle), names[a.LinkIndex])
		if t, ok := q.(*netlink.Tbf); ok {
			line += fmt.Sprintf(" rate %d limit %d buffer %d", t.Rate, t.Limit, t.Buffer)
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: a.LinkIndex}}, parent)
			if err != nil {
				return nil, err
			}
			line += fmt.Sprintf(" filters %d", len(filters))
		}
		out = append(out, line)
	}
	return out, nil
}
