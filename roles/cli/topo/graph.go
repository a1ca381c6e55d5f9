package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
)

// node is a box of the graph: a device, another node to which a tunnel sends, or an attachment.
type node struct {
	kind      string
	isProblem bool
	// edge is at the line from the box above, lines are in the box.
	edge, lines []line
	// details are shown if the box is chosen. Their first line is unique.
	details  string
	children []*node
}

// line is a text that is marked if something is wrong.
type line struct {
	text    string
	isWrong bool
}

func lines(isWrong bool, all ...string) (out []line) {
	for _, text := range all {
		out = append(out, line{text, isWrong})
	}
	return out
}

// class returns the names of the styles of a box.
func (n *node) class() string {
	if n.isProblem {
		return n.kind + " problem"
	}
	return n.kind
}

func (l *line) class() string {
	if l.isWrong {
		return "line wrong"
	}
	return "line"
}

// drawnPeers is the number of peers of a tunnel with a box. JSON has all.
const drawnPeers = 24

// graph returns the boxes that are under no other: those of the uplinks first, and last the devices that nothing is connected to.
func (t *Topology) graph() []*node {
	bare, used := t.groups()
	boxes, roots, groups := map[string]*node{}, []*node{}, append(used, bare...)
	sorting.Stable(groups, func(a, b group) int { return strings.Compare(t.kind(b.device), t.kind(a.device)) })
	for i := range groups {
		boxes[groups[i].title()] = t.box(&groups[i])
	}
	for i := range groups {
		n := boxes[groups[i].title()]
		above, edge := t.above(&groups[i])
		if boxes[above] == nil {
			roots = append(roots, n)
			continue
		}
		n.edge = lines(false, edge)
		boxes[above].children = append(boxes[above].children, n)
	}
	for i := range groups {
		n, d := boxes[groups[i].title()], groups[i].device
		n.isProblem = d != nil && !d.Up && len(n.children) > 0 // other devices that are down are not in use
		sorting.Stable(n.children, func(a, b *node) int { return a.rank() - b.rank() })
	}
	return roots
}

// kind returns the kind of a device's box. "uplink" is after "tunnel", and this after "device".
func (t *Topology) kind(d *Device) string {
	switch {
	case d != nil && slices.Contains(t.Uplinks, d.Name):
		return "uplink"
	case d != nil && d.IsTunnel:
		return "tunnel"
	}
	return "device"
}

// rank orders the boxes below a box: single ones first, because the lines to them must not cross others, and each with problems first.
func (n *node) rank() int {
	rank := 2 * min(len(n.children), 1)
	if !n.hasProblem() && n.kind != "tunnel" {
		rank++
	}
	return rank
}

// hasProblem reports whether a box or one below it has a problem.
func (n *node) hasProblem() bool {
	return n.isProblem || slices.ContainsFunc(n.children, (*node).hasProblem)
}

// above returns the device above a group, and what is at the edge between them: the lower device, or the uplink by which the packets of
// attachments and tunnels leave the node.
func (t *Topology) above(g *group) (device, edge string) {
	d := g.device
	uplink := append(slices.Clone(t.Uplinks), "")[0]
	switch {
	case d != nil && (d.Lower != "" || t.kind(d) == "uplink"):
		return d.Lower, "on " + d.Lower
	case slices.ContainsFunc(g.attachments, func(a *Attachment) bool { return a.Masquerade }):
		return uplink, "masqueraded by " + uplink
	case d == nil || len(g.attachments) > 0 || d.IsTunnel || d.Kind == "bridge" && len(d.Addresses) > 0:
		return uplink, "routed by " + uplink
	}
	return "", ""
}

// box returns the box of a device, with those of its attachments and peers.
func (t *Topology) box(g *group) *node {
	n := &node{kind: t.kind(g.device), lines: lines(false, g.title()), details: g.title()}
	if d := g.device; d != nil {
		kind := cmp.Or(d.Kind, "device")
		if d.IsTunnel {
			kind += fmt.Sprintf(" to %d other nodes", len(d.Peers))
			if len(d.Peers) > drawnPeers {
				kind += fmt.Sprintf(", of which %d are drawn", drawnPeers)
			}
		}
		if n.kind == "uplink" {
			kind += ", uplink: has the default route"
		}
		if !d.Up {
			kind += ", down"
		}
		n.lines = append(append(append(n.lines, lines(false, kind)...), lines(false, texts(d.Addresses)...)...), d.Traffic.lines("rx", "tx")...)
		n.details += "\n" + t.details(d)
		for _, peer := range d.Peers[:min(len(d.Peers), drawnPeers)] {
			n.children = append(n.children, &node{kind: "peer", lines: lines(false, peer.String()), details: peer.String() + " behind " + d.Name})
		}
	}
	for _, a := range g.attachments {
		n.children = append(n.children, a.box())
	}
	return n
}

func (a *Attachment) box() *node {
	n := &node{kind: "attachment", isProblem: len(a.Problems) > 0, details: strings.Join(append([]string{a.name() + " " + a.IfName + " on " + a.Network, a.details()}, a.Problems...), "\n")}
	if a.HostLink != "" {
		n.edge = append(lines(false, a.HostLink), a.Traffic.lines("sent", "received")...)
	}
	policies := slices.Concat(a.Egress, a.Ingress)
	slices.Sort(policies)
	if len(policies) > 0 {
		n.edge = append(n.edge, line{"policies " + strings.Join(slices.Compact(policies), ", "), false})
	}
	if a.DeniedPackets > 0 {
		n.edge = append(n.edge, line{fmt.Sprintf("denied %d by policies", a.DeniedPackets), true})
	}
	n.lines = append(lines(false, append(append([]string{a.name()}, texts(a.Addresses)...), a.IfName+" on "+a.Network)...), lines(true, a.Problems...)...)
	return n
}

// lines has what passed in both directions, per second if an earlier reading is known, and what was lost.
func (t *Traffic) lines(received, sent string) []line {
	all := lines(false, fmt.Sprintf("%s %s, %d packets", received, size(t.ReceivedBytes), t.ReceivedPackets), fmt.Sprintf("%s %s, %d packets", sent, size(t.SentBytes), t.SentPackets))
	if r := t.perSecond; r != nil {
		all = lines(false, fmt.Sprintf("%s %s/s, %.1f packets/s", received, size(uint64(r.receivedBytes)), r.receivedPackets), fmt.Sprintf("%s %s/s, %.1f packets/s", sent, size(uint64(r.sentBytes)), r.sentPackets))
	}
	return append(all, lines(true, t.lost()...)...)
}
