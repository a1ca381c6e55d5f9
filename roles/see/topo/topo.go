// Package topo draws the networks of a node: as text, as a graph for Graphviz, as SVG, and as one HTML page. It also draws the
// calls of the plugins that made them.
package topo

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops/rates"
	"github.com/cnibox/cnibox/roles/see/inventory"
)

// Topology is a node with its devices and attachments.
type Topology struct {
	Node        string       `json:"node"`
	Devices     []Device     `json:"devices"`
	Attachments []Attachment `json:"attachments"`
	// Rates are those of the host's links in the last hour, by name.
	Rates map[string]*rates.Rates `json:"rates,omitempty"`
	// Nodes are other nodes by their addresses, as far as the agent knows them.
	Nodes map[netip.Addr]Node `json:"nodes,omitempty"`
}

// Node is another node.
type Node struct {
	Name string `json:"name"`
	// Problem says what is wrong with the way to it, or is "".
	Problem string `json:"problem,omitempty"`
}

// Traffic has the counters of a link on the host.
type Traffic struct {
	ReceivedBytes    uint64 `json:"receivedBytes"`
	SentBytes        uint64 `json:"sentBytes"`
	ReceivedPackets  uint64 `json:"receivedPackets"`
	SentPackets      uint64 `json:"sentPackets"`
	ReceivedDropped  uint64 `json:"receivedDropped"`
	SentDropped      uint64 `json:"sentDropped"`
	ErroneousPackets uint64 `json:"erroneousPackets"`
	// before are the counters of an earlier reading, or nil.
	before  *Traffic
	elapsed time.Duration
}

// Device is a link of the host that is not the host's end of an attachment.
type Device struct {
	Name string `json:"name"`
	// Kind is "" for a physical device.
	Kind      string         `json:"kind,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	MTU       int            `json:"mtu"`
	Up        bool           `json:"up"`
	// Uplink means that the node's default route leads to it.
	Uplink bool `json:"uplink,omitempty"`
	// Lower is the device by which this one sends, or the bridge whose port it is.
	Lower string `json:"lower,omitempty"`
	// Peers are the addresses of the nodes to which a tunnel sends: a VXLAN or WireGuard device.
	IsTunnel bool         `json:"-"`
	Peers    []netip.Addr `json:"peers,omitempty"`
	Traffic  Traffic      `json:"traffic"`
}

// Attachment is an interface of a container.
type Attachment struct {
	Container string `json:"container"`
	Pod       string `json:"pod,omitempty"`
	Network   string `json:"network"`
	// Netns is the path of the container's network namespace.
	Netns     string         `json:"netns,omitempty"`
	IfName    string         `json:"ifname"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	MAC       string         `json:"mac,omitempty"`
	// HostLink is the interface's end on the host, and Device the device that it is connected to.
	// Device is "" for an interface whose packets the host routes.
	HostLink string   `json:"hostLink,omitempty"`
	Device   string   `json:"device,omitempty"`
	Ports    []string `json:"ports,omitempty"`
	// Masquerade means that its packets leave the node with the node's address.
	Masquerade bool `json:"masquerade,omitempty"`
	// EgressAddresses are those of the node with which its packets leave because of egressAddress, one of a family.
	EgressAddresses []netip.Addr `json:"egressAddresses,omitempty"`
	// Egress and Ingress are the network policies that select the pod. Pods with the same policies share DeniedPackets, which no
	// rule of these policies matched.
	Egress        []string `json:"egress,omitempty"`
	Ingress       []string `json:"ingress,omitempty"`
	DeniedPackets uint64   `json:"deniedPackets,omitempty"`
	// Traffic is that of HostLink: what the host receives is what the container sends.
	Traffic  Traffic  `json:"traffic"`
	Problems []string `json:"problems,omitempty"`
}

// Title returns the pod, or the container's ID. Of one that a runtime made of random digits it returns the beginning.
func (a *Attachment) Title() string { return cmp.Or(a.Pod, inventory.ShortID(a.Container)) }

func (a *Attachment) id() string { return a.Container + " " + a.IfName + " " + a.Network }

// group is a device with the attachments that are connected to it.
type group struct {
	device      *Device
	attachments []*Attachment
}

// groups returns the devices, those without attachments first, and last the attachments without a device.
func (t *Topology) groups() (bare, used []group) {
	var routed group
	by := map[string][]*Attachment{}
	for i := range t.Attachments {
		a := &t.Attachments[i]
		if slices.ContainsFunc(t.Devices, func(d Device) bool { return d.Name == a.Device }) {
			by[a.Device] = append(by[a.Device], a)
		} else {
			routed.attachments = append(routed.attachments, a)
		}
	}
	for i := range t.Devices {
		g := group{&t.Devices[i], by[t.Devices[i].Name]}
		if len(g.attachments) == 0 {
			bare = append(bare, g)
		} else {
			used = append(used, g)
		}
	}
	if len(routed.attachments) > 0 {
		used = append(used, routed)
	}
	return bare, used
}

func (g *group) title() string {
	if g.device == nil {
		return "routed by the host"
	}
	return g.device.Name
}

// shownPeers is the number of peers in the line of a device. JSON has all.
const shownPeers = 5

// details returns a device's properties in one line.
func (d *Device) details() string {
	words := []string{cmp.Or(d.Kind, "device")}
	if d.Uplink {
		words = append(words, "uplink")
	}
	words = append(words, texts(d.Addresses)...)
	words = append(words, fmt.Sprintf("mtu %d", d.MTU))
	if !d.Up {
		words = append(words, "DOWN")
	}
	if d.Lower != "" {
		words = append(words, "on "+d.Lower)
	}
	if d.IsTunnel {
		words = append(words, fmt.Sprintf("peers %d", len(d.Peers)))
		for _, peer := range d.Peers[:min(len(d.Peers), shownPeers)] {
			words = append(words, peer.String())
		}
		if len(d.Peers) > shownPeers {
			words = append(words, "…")
		}
	}
	return strings.Join(append(words, d.Traffic.String()), " ")
}

// details returns an attachment's properties in one line.
func (a *Attachment) details() string {
	words := append([]string{a.IfName}, texts(a.Addresses)...)
	words = append(words, "network "+a.Network)
	if a.Netns != "" {
		words = append(words, "netns "+a.Netns)
	}
	if a.HostLink != "" {
		words = append(words, a.HostLink)
	}
	if len(a.Ports) > 0 {
		words = append(words, "ports "+strings.Join(a.Ports, " "))
	}
	for _, e := range a.EgressAddresses {
		words = append(words, "leaves with "+e.String())
	}
	for _, of := range []struct {
		direction string
		policies  []string
	}{{"egress", a.Egress}, {"ingress", a.Ingress}} {
		if len(of.policies) > 0 {
			words = append(words, of.direction+" "+strings.Join(of.policies, ", "))
		}
	}
	words = append(words, a.Traffic.String())
	if a.DeniedPackets > 0 {
		words = append(words, fmt.Sprintf("denied %d", a.DeniedPackets))
	}
	return strings.Join(words, " ")
}

// String returns the bytes, and what was lost.
func (t Traffic) String() string {
	return strings.Join(append([]string{"rx " + size(t.ReceivedBytes), "tx " + size(t.SentBytes)}, t.lost()...), " ")
}

// lost returns what is not zero of the packets that were not delivered.
func (t *Traffic) lost() (all []string) {
	if n := t.ReceivedDropped + t.SentDropped; n > 0 {
		all = append(all, fmt.Sprintf("dropped %d", n))
	}
	if t.ErroneousPackets > 0 {
		all = append(all, fmt.Sprintf("errors %d", t.ErroneousPackets))
	}
	return all
}

// Since adds an earlier reading of the node, for rates. Less than before is of another link with the name.
func (t *Topology) Since(before *Topology, elapsed time.Duration) {
	earlier := before.traffic()
	for name, now := range t.traffic() {
		was, known := earlier[name]
		if known && was.ReceivedPackets <= now.ReceivedPackets && was.SentPackets <= now.SentPackets {
			now.before, now.elapsed = &Traffic{ReceivedBytes: was.ReceivedBytes, SentBytes: was.SentBytes, ReceivedPackets: was.ReceivedPackets, SentPackets: was.SentPackets}, elapsed
		}
	}
}

func (t *Topology) traffic() map[string]*Traffic {
	all := map[string]*Traffic{}
	for i := range t.Devices {
		all[t.Devices[i].Name] = &t.Devices[i].Traffic
	}
	for i := range t.Attachments {
		all[t.Attachments[i].id()] = &t.Attachments[i].Traffic
	}
	return all
}

// size returns a number of bytes with a unit (IEC 80000-13).
func size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

func texts(all []netip.Prefix) (out []string) {
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// Text draws a tree. mark changes a text that names a problem; it may be nil.
func (t *Topology) Text(mark func(string) string) string {
	if mark == nil {
		mark = func(s string) string { return s }
	}
	var b strings.Builder
	bare, used := t.groups()
	fmt.Fprintf(&b, "%s\n", t.Node)
	for _, g := range append(bare, used...) {
		line := g.title()
		if g.device != nil {
			line += "  " + g.device.details()
		}
		if g.device != nil && !g.device.Up {
			line = mark(line)
		}
		fmt.Fprintf(&b, "  %s\n", line)
		for i, a := range g.attachments {
			branch, next := "├─ ", "│    "
			if i == len(g.attachments)-1 {
				branch, next = "└─ ", "     "
			}
			fmt.Fprintf(&b, "  %s%s  %s\n", branch, a.Title(), a.details())
			for _, p := range a.Problems {
				fmt.Fprintf(&b, "  %s%s\n", next, mark("! "+p))
			}
		}
	}
	return b.String()
}

// DOT returns the graph in Graphviz' language.
func (t *Topology) DOT() string {
	var b strings.Builder
	quote := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
	}
	color := func(problem bool) string {
		if problem {
			return ", color=red"
		}
		return ""
	}
	fmt.Fprintf(&b, "graph %s {\n  rankdir=LR; node [shape=box];\n", quote(t.Node))
	for i := range t.Devices {
		d := &t.Devices[i]
		fmt.Fprintf(&b, "  %s [label=%s%s];\n", quote("device "+d.Name), quote(d.Name+"\n"+d.details()), color(!d.Up))
		if d.Lower != "" {
			fmt.Fprintf(&b, "  %s -- %s;\n", quote("device "+d.Lower), quote("device "+d.Name))
		}
	}
	_, used := t.groups()
	for _, g := range used {
		for _, a := range g.attachments {
			id := quote(a.id())
			fmt.Fprintf(&b, "  %s [label=%s%s];\n", id, quote(strings.Join(append([]string{a.Title(), a.details()}, a.Problems...), "\n")), color(len(a.Problems) > 0))
			if g.device != nil {
				fmt.Fprintf(&b, "  %s -- %s;\n", quote("device "+g.device.Name), id)
			}
		}
	}
	return b.String() + "}\n"
}
