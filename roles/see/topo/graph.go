package topo

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/rates"
)

// node is a box of the graph: a device, another node to which a tunnel sends, or an attachment.
type node struct {
	class string
	// edge is at the line from the box above, lines are in the box.
	edge, lines []string
	// details are shown if the box is chosen. Their first line is unique.
	details string
	// drawing is markup below the lines.
	drawing  string
	children []*node
}

// A line with mark says what is wrong. A box with problemClass has, or is, what is wrong.
const mark, problemClass = "! ", " problem"

// lineClass returns the class of a line.
func lineClass(line string) string {
	if strings.HasPrefix(line, mark) {
		return "line wrong"
	}
	return "line"
}

// drawnPeers is the number of peers of a tunnel with a box. JSON has all.
const drawnPeers = 24

// graph returns the boxes that are under no other: that of the uplink first, and last the devices that nothing is connected to.
func (t *Topology) graph() []*node {
	bare, used := t.groups()
	boxes, roots, groups, uplink := map[string]*node{}, []*node{}, append(used, bare...), ""
	for i := range groups {
		g := &groups[i]
		boxes[g.title()] = g.box(t)
		if g.device != nil && g.device.Uplink {
			uplink = g.device.Name
		}
	}
	for i := range groups {
		n := boxes[groups[i].title()]
		above, edge := groups[i].above(uplink)
		switch parent := boxes[above]; {
		case parent != nil:
			n.edge = []string{edge}
			parent.children = append(parent.children, n)
		case groups[i].title() == uplink:
			roots = append([]*node{n}, roots...)
		default:
			roots = append(roots, n)
		}
	}
	for i := range groups {
		n, d := boxes[groups[i].title()], groups[i].device
		if d != nil && !d.Up && len(n.children) > 0 { // other devices that are down are not in use
			n.class += problemClass
		}
		sorting.Stable(n.children, func(a, b *node) int { return a.rank() - b.rank() })
	}
	return roots
}

// rank orders the boxes below a box: single ones first, because the lines to them must not cross others, and each with problems first.
func (n *node) rank() int {
	rank := 2 * min(len(n.children), 1)
	if !n.hasProblem() && n.class != "tunnel" {
		rank++
	}
	return rank
}

// hasProblem reports whether a box or one below it has a problem.
func (n *node) hasProblem() bool {
	return strings.HasSuffix(n.class, problemClass) || slices.ContainsFunc(n.children, (*node).hasProblem)
}

// above returns the device above a group, and what is at the edge between them: the lower device, or the uplink by which the packets of
// attachments and tunnels leave the node.
func (g *group) above(uplink string) (device, edge string) {
	d := g.device
	switch {
	case d != nil && (d.Lower != "" || d.Uplink):
		return d.Lower, "on " + d.Lower
	case slices.ContainsFunc(g.attachments, func(a *Attachment) bool { return a.Masquerade }):
		return uplink, g.translation(uplink)
	case len(g.attachments) > 0 || d.IsTunnel || d.Kind == "bridge" && len(d.Addresses) > 0:
		return uplink, "routed by " + uplink
	}
	return "", ""
}

// translation says with which addresses the packets of attachments that are masqueraded leave the node.
func (g *group) translation(uplink string) string {
	var egress []string
	isPlain := false // whether packets leave with the address of the uplink
	for _, a := range g.attachments {
		for _, e := range a.EgressAddresses {
			egress = append(egress, e.String())
		}
		hasOther := func(p netip.Prefix) bool {
			return !slices.ContainsFunc(a.EgressAddresses, func(e netip.Addr) bool { return e.Is4() == p.Addr().Is4() })
		}
		isPlain = isPlain || a.Masquerade && slices.ContainsFunc(a.Addresses, hasOther)
	}
	slices.Sort(egress)
	with := "leaving with " + strings.Join(slices.Compact(egress), " or ")
	switch {
	case len(egress) == 0:
		return "masqueraded by " + uplink
	case isPlain:
		return "masqueraded by " + uplink + ", or " + with
	}
	return with + " by " + uplink
}

// box returns the box of a device, with those of its attachments and peers.
func (g *group) box(t *Topology) *node {
	n := &node{class: "device", lines: []string{g.title()}, details: g.title()}
	if d := g.device; d != nil {
		kind := cmp.Or(d.Kind, "device")
		if d.IsTunnel {
			n.class, kind = "tunnel", fmt.Sprintf("%s to %d other nodes", kind, len(d.Peers))
		}
		if len(d.Peers) > drawnPeers {
			kind += fmt.Sprintf(", of which %d are drawn", drawnPeers)
		}
		if d.Uplink {
			n.class, kind = "uplink", kind+", uplink: has the default route"
		}
		if !d.Up {
			kind += ", down"
		}
		n.lines = slices.Concat(n.lines, []string{kind}, texts(d.Addresses), d.Traffic.lines("rx", "tx"))
		n.details += "\n" + d.details()
		n.drawing = drawRates(t.Rates[d.Name], "rx", "tx")
		for _, peer := range d.Peers[:min(len(d.Peers), drawnPeers)] {
			n.children = append(n.children, t.peer(peer, d.Name))
		}
	}
	for _, a := range g.attachments {
		n.children = append(n.children, a.box(t.Rates))
	}
	return n
}

// peer returns the box of another node behind a tunnel.
func (t *Topology) peer(a netip.Addr, tunnel string) *node {
	n := &node{class: "peer", lines: []string{a.String()}, details: a.String() + " behind " + tunnel}
	if known, ok := t.Nodes[a]; ok {
		n.lines = []string{known.Name, a.String()}
		n.details = known.Name + " at " + n.details
		if known.Problem != "" {
			n.class, n.lines, n.details = n.class+problemClass, append(n.lines, mark+known.Problem), n.details+"\n"+known.Problem
		}
	}
	return n
}

func (a *Attachment) box(all map[string]*rates.Rates) *node {
	title := a.IfName + " on " + a.Network
	n := &node{
		class: "attachment", lines: slices.Concat([]string{a.Title()}, texts(a.Addresses), []string{title}),
		details: strings.Join(append([]string{a.Title() + " " + title, a.details()}, a.Problems...), "\n"),
	}
	if a.HostLink != "" {
		n.drawing = drawRates(all[a.HostLink], "sent", "received")
		n.edge = append([]string{a.HostLink}, a.Traffic.lines("sent", "received")...)
	}
	policies := slices.Concat(a.Egress, a.Ingress)
	slices.Sort(policies)
	if len(policies) > 0 {
		n.edge = append(n.edge, "policies "+strings.Join(slices.Compact(policies), ", "))
	}
	if a.DeniedPackets > 0 {
		n.edge = append(n.edge, fmt.Sprintf("%sdenied %d by policies", mark, a.DeniedPackets))
	}
	for _, p := range a.Problems {
		n.lines, n.class = append(n.lines, mark+p), "attachment"+problemClass
	}
	return n
}

// lines has what passed in both directions, per second if an earlier reading is known, and what was lost.
func (t *Traffic) lines(received, sent string) []string {
	was, seconds, format := Traffic{}, 1.0, "%s %s, %.0f packets"
	if t.before != nil {
		was, seconds, format = *t.before, t.elapsed.Seconds(), "%s %s/s, %.1f packets/s"
	}
	flow := func(word string, bytes, packets uint64) string {
		return fmt.Sprintf(format, word, size(uint64(float64(bytes)/seconds)), float64(packets)/seconds)
	}
	all := []string{
		flow(received, t.ReceivedBytes-was.ReceivedBytes, t.ReceivedPackets-was.ReceivedPackets),
		flow(sent, t.SentBytes-was.SentBytes, t.SentPackets-was.SentPackets),
	}
	for _, lost := range t.lost() {
		all = append(all, mark+lost)
	}
	return all
}
