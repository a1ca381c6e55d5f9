package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/cli/lab"
)

// mostHops limits a path through this node, for routes that lead in a circle.
const mostHops = 8

// walker follows one packet. It stops at the first error and at the first thing that stops the packet.
type walker struct {
	ctx         context.Context
	net         *netops.Net
	attachments []attached
	// links are the host's.
	links []netops.LinkInfo
	// port is the destination's port, or 0.
	port uint16
	hops int
	// lab continues a path on another of its nodes. It may be nil. beyond has what a
	// probe traces there.
	lab    *lab.Lab
	beyond []tracedPlace
	// asked are the neighbours on the path.
	asked []askedNeighbour
	found packetPath
	err   error
}

// askedNeighbour is an address whose MAC a namespace needs on a link.
type askedNeighbour struct {
	ns          *netops.Namespace
	where, link string
	ip          netip.Addr
}

func (w *walker) step(where, what, format string, a ...any) {
	w.found.Steps = append(w.found.Steps, pathStep{where, what, fmt.Sprintf(format, a...)})
}

func (w *walker) stop(fix, format string, a ...any) {
	w.found.Stopped, w.found.Fix = fmt.Sprintf(format, a...), fix
}

// fail ends the walk with an error, and reports whether there is one.
func (w *walker) fail(err error) bool {
	w.err = err
	return err != nil
}

// walk follows the packet from its source.
func (w *walker) walk(source *pathEnd) {
	if source.ns == nil {
		w.publishedPort()
		w.send(netops.Packet{To: w.found.To})
		return
	}
	way, link, ok := w.route(source.ns, source.name, netops.Packet{To: w.found.To})
	if !ok {
		return
	}
	if way.Local {
		w.step(source.name, "arrives", "%s is the container's own address", w.found.To)
		return
	}
	next := w.next(way)
	mac, ok := w.neighbour(source.ns, source.name, link.Name, next)
	if !ok {
		return
	}
	outside, err := w.net.HostEnd(w.ctx, source.ns, link.Name)
	if isNotExist(err) {
		w.step(source.name, "leaves", "by %s, a %s; the network outside decides", link.Name, kindOf(&link))
		return
	}
	if w.fail(err) {
		return
	}
	w.enter(w.hostLink(outside.Name), mac, next)
}

// route asks for the way of a packet and checks the outgoing link.
func (w *walker) route(ns *netops.Namespace, where string, p netops.Packet) (way netops.Way, link netops.LinkInfo, ok bool) {
	way, err := w.net.Way(w.ctx, ns, p)
	switch {
	case way.Refused:
		w.stop(fmt.Sprintf("sysctl net.ipv4.conf.%s.rp_filter=2", p.In), "%s refuses packets from %s that arrive on %s (rp_filter): its route to %s leads elsewhere", where, p.From, p.In, p.From)
		return way, link, false
	case isNotExist(err):
		w.stop("cnibox diff", "%s has no route to %s", where, p.To)
		return way, link, false
	case w.fail(err):
		return way, link, false
	case way.Local:
		return way, link, true
	}
	via := ""
	if way.Via.IsValid() {
		via = " via " + way.Via.String()
	}
	w.step(where, "route", "%s%s dev %s", p.To, via, way.Link)
	link, err = w.net.Link(w.ctx, ns, way.Link)
	return way, link, !w.fail(err) && w.usable(where, &link)
}

// next is the address to which the packet goes on a link.
func (w *walker) next(way netops.Way) netip.Addr {
	if way.Via.IsValid() {
		return way.Via
	}
	return w.found.To
}

// usable checks that a link carries packets.
func (w *walker) usable(where string, l *netops.LinkInfo) bool {
	switch {
	case !l.Up:
		w.stop("cnibox repair", "%s of %s is down", l.Name, where)
	case !l.Running:
		w.stop("", "%s of %s has no carrier: its other end is down or gone", l.Name, where)
	default:
		return true
	}
	return false
}

// neighbour returns the MAC of a neighbour, or "" if the kernel has yet to ask for it.
func (w *walker) neighbour(ns *netops.Namespace, where, link string, ip netip.Addr) (mac string, ok bool) {
	w.asked = append(w.asked, askedNeighbour{ns, where, link, ip})
	n, err := w.net.Neighbour(w.ctx, ns, link, ip)
	switch {
	case w.fail(err):
		return "", false
	case n.Failed:
		w.step(where, "neighbour", "%s on %s: nobody answered the last requests", ip, link)
	case n.MAC == "":
		w.step(where, "neighbour", "%s on %s: not known yet, the first packet asks", ip, link)
	default:
		w.step(where, "neighbour", "%s is %s on %s", ip, n.MAC, link)
	}
	return n.MAC, true
}

// enter follows a frame that arrives at a link of the host.
func (w *walker) enter(l *netops.LinkInfo, mac string, next netip.Addr) {
	if l == nil || !w.usable(hostName, l) {
		return
	}
	if l.Master == "" {
		w.step(hostName, "arrives", "on %s", l.Name)
		w.forward(l.Name)
		return
	}
	bridge := w.hostLink(l.Master)
	if bridge == nil {
		return
	}
	w.step(hostName, "port", "%s of %s", l.Name, bridge.Name)
	if !bridge.Up {
		w.stop("cnibox repair", "%s is down", bridge.Name)
		return
	}
	if slices.ContainsFunc(bridge.Addresses, func(p netip.Prefix) bool { return p.Addr() == next }) {
		w.forward(bridge.Name)
		return
	}
	w.bridged(bridge, mac, next)
}

// bridged follows a frame that a bridge sends out of one of its ports, or that is for the bridge itself.
func (w *walker) bridged(bridge *netops.LinkInfo, mac string, next netip.Addr) {
	if mac != "" {
		entry, err := w.net.ForwardingEntry(w.ctx, bridge.Name, mac)
		switch {
		case w.fail(err):
			return
		case entry.Local:
			w.forward(bridge.Name)
			return
		case entry.Known:
			w.step(hostName, "bridge", "%s sends %s to port %s", bridge.Name, mac, entry.Port)
			w.leave(entry.Port)
			return
		}
	}
	// Until the kernel has learnt it, the answer is the port of the attachment with the address.
	a := w.attachmentWith(next)
	if a != nil && w.isPort(a.HostLink, bridge.Name) {
		w.step(hostName, "bridge", "%s: port %s has %s", bridge.Name, a.HostLink, next)
		w.leave(a.HostLink)
		return
	}
	var outside []string
	for i := range w.links {
		if l := &w.links[i]; l.Master == bridge.Name && l.Kind != "veth" {
			outside = append(outside, l.Name)
		}
	}
	if len(outside) == 0 {
		w.stop("cnibox diff", "nobody on %s has %s", bridge.Name, next)
		return
	}
	w.step(hostName, "leaves", "by %s of %s; the network outside decides", strings.Join(outside, ", "), bridge.Name)
}

func (w *walker) isPort(link, bridge string) bool {
	l := w.find(link)
	return l != nil && l.Master == bridge
}

// forward follows a packet that arrived at a link of the host and is not for a bridge's port.
func (w *walker) forward(in string) {
	w.hops++
	if w.hops > mostHops {
		w.stop("ip route", "the routes of this node lead in a circle")
		return
	}
	w.publishedPort()
	own, err := w.net.Way(w.ctx, nil, netops.Packet{To: w.found.To})
	if err == nil && own.Local {
		w.step(hostName, "arrives", "%s is an address of this node", w.found.To)
		return
	}
	key, name := "net/ipv4/conf/"+in+"/forwarding", "net.ipv4.ip_forward"
	if w.found.To.Is6() {
		key, name = "net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"
	}
	value, err := w.net.Sysctl(w.ctx, nil, key)
	if w.fail(err) {
		return
	}
	if value == "0" {
		w.stop("sysctl "+name+"=1", "this node does not forward packets from %s: /proc/sys/%s is 0", in, key)
		return
	}
	drops, err := w.net.ForwardDrops(w.ctx)
	if w.fail(err) {
		return
	}
	if len(drops) > 0 {
		w.step(hostName, "filter", "may drop it, because its policy is drop: %s", strings.Join(drops, ", "))
	}
	w.send(netops.Packet{To: w.found.To, From: w.found.From, In: in})
}

// filtered reports whether a rule of another program drops the forwarded packet by its addresses or devices.
func (w *walker) filtered(p netops.Packet, out string) bool {
	if p.In == "" {
		return false
	}
	rules, err := w.net.ForwardDropRules(w.ctx)
	if w.fail(err) {
		return true
	}
	device := func(want, have string) bool {
		begin, isPattern := strings.CutSuffix(want, "*")
		return want == "" || want == have || isPattern && strings.HasPrefix(have, begin)
	}
	address := func(want netip.Prefix, have netip.Addr) bool { return !want.IsValid() || want.Contains(have) }
	for _, r := range rules {
		if device(r.In, p.In) && device(r.Out, out) && address(r.Source, p.From) && address(r.Destination, p.To) {
			w.stop(fmt.Sprintf("nft delete rule %s handle %d", r.Chain, r.Handle), "a rule of another program drops it: %s", r.String())
			return true
		}
	}
	return false
}

// publishedPort replaces the destination if a container of this node publishes its port.
func (w *walker) publishedPort() {
	if w.port == 0 {
		return
	}
	for i := range w.attachments {
		a := &w.attachments[i]
		for _, p := range a.Ports {
			if !isPublished(p, w.found.To, w.port) {
				continue
			}
			for _, prefix := range a.Addresses {
				if to := prefix.Addr(); to.Is6() == w.found.To.Is6() && w.isHostAddress(w.found.To) {
					w.step(hostName, "port", "%s is published by %s: the destination becomes %s", p, containerName(a), to)
					w.found.To, w.port = to, 0
					return
				}
			}
		}
	}
}

// isPublished reports whether a published port, as `cnibox state` prints it, is a port of an address.
func isPublished(published string, to netip.Addr, port uint16) bool {
	ports, _, _ := strings.Cut(published, "/")
	if i := strings.LastIndex(ports, ":"); i >= 0 {
		if a, err := netip.ParseAddr(ports[:i]); err != nil || a != to {
			return false
		}
		ports = ports[i+1:]
	}
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	var least, most uint16
	_, err := fmt.Sscanf(first+" "+last, "%d %d", &least, &most)
	return err == nil && least <= port && port <= most
}

func (w *walker) isHostAddress(a netip.Addr) bool {
	return slices.ContainsFunc(w.links, func(l netops.LinkInfo) bool {
		return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// send follows a packet that the host sends or forwards.
func (w *walker) send(p netops.Packet) {
	way, link, ok := w.route(nil, hostName, p)
	switch {
	case !ok:
		return
	case way.Local:
		w.step(hostName, "arrives", "%s is an address of this node", p.To)
		return
	}
	if !w.found.From.IsValid() {
		w.found.From = way.From
	}
	if w.filtered(p, link.Name) {
		return
	}
	next := w.next(way)
	switch mac, ok := w.neighbour(nil, hostName, link.Name, next); {
	case !ok:
	case link.Kind == "bridge":
		w.bridged(&link, mac, next)
	case link.Kind == "vxlan":
		w.tunnel(&link, mac, next)
	default:
		w.leave(link.Name)
	}
}

// tunnel follows a packet into a VXLAN device and the encapsulated packet to the underlay.
func (w *walker) tunnel(l *netops.LinkInfo, mac string, next netip.Addr) {
	if mac == "" {
		w.stop("cnibox agent status", "no neighbour %s on %s: the agent has not programmed the node of %s", next, l.Name, w.found.To)
		return
	}
	entry, err := w.net.ForwardingEntry(w.ctx, l.Name, mac)
	if w.fail(err) {
		return
	}
	if !entry.Remote.IsValid() {
		w.stop("cnibox agent status", "no forwarding entry for %s on %s: the agent has not programmed the node of %s", mac, l.Name, w.found.To)
		return
	}
	w.step(hostName, "tunnel", "%s sends it to node %s", l.Name, entry.Remote)
	way, link, ok := w.route(nil, hostName, netops.Packet{To: entry.Remote})
	if !ok || way.Local {
		return
	}
	hop := entry.Remote
	if way.Via.IsValid() {
		hop = way.Via
	}
	if _, ok := w.neighbour(nil, hostName, link.Name, hop); ok {
		w.otherNode(l.Name, link.Name, entry.Remote)
	}
}

// otherNode continues the path on another node of the lab. The packet arrives there on the
// device with the same name.
func (w *walker) otherNode(tunnel, out string, node netip.Addr) {
	var next *lab.Node
	if w.lab != nil {
		var err error
		next, err = w.lab.NodeAt(node)
		if w.fail(err) {
			return
		}
	}
	from := w.found.From.String()
	if next == nil {
		w.step(hostName, "leaves", "by %s to node %s; 'cnibox path --in %s %s %s' there goes on", out, node, tunnel, from, w.found.To)
		return
	}
	w.step(hostName, "leaves", "by %s to node %s, %s of the lab", out, node, next.Name)
	b, err := w.lab.Run(w.ctx, next, "path", "--json", "--in", tunnel, from, w.found.To.String())
	var there packetPath
	if json.Unmarshal(b, &there) != nil {
		w.err = err // exit code 3 with JSON is a path that stops
		return
	}
	for _, s := range there.Steps {
		if s.Where == hostName {
			s.Where = next.Name
		}
		w.found.Steps = append(w.found.Steps, s)
	}
	if there.Stopped != "" {
		w.stop(there.Fix, "%s: %s", next.Name, there.Stopped)
	}
	w.beyond = append(w.beyond, tracedPlace{name: next.Name, path: filepath.Join(netops.NamespaceDir, next.Netns)})
	for _, p := range next.Pods {
		if p.Address == w.found.To {
			w.beyond = append(w.beyond, tracedPlace{name: p.Name, path: filepath.Join(netops.NamespaceDir, p.Netns)})
		}
	}
}

// leave follows a frame that the host sends on a link: into a container, or out of the node.
func (w *walker) leave(link string) {
	l := w.hostLink(link)
	if l == nil || !w.usable(hostName, l) {
		return
	}
	i := slices.IndexFunc(w.attachments, func(a attached) bool { return a.HostLink == link })
	if i < 0 {
		w.step(hostName, "leaves", "by %s", link)
		return
	}
	w.arrive(&w.attachments[i])
}

// arrive checks the container at the end of the path: that it has the address, and a route back.
func (w *walker) arrive(a *attached) {
	name := containerName(a)
	ns, err := w.net.OpenNamespace(a.Netns)
	if err != nil {
		w.stop("cnibox state reap", "the namespace of %s cannot be opened: %v", name, err)
		return
	}
	defer func() { _ = ns.Close() }() // it was only read
	l, err := w.net.Link(w.ctx, ns, a.IfName)
	switch {
	case isNotExist(err):
		w.stop("cnibox repair", "%s has no interface %s", name, a.IfName)
		return
	case w.fail(err), !w.usable(name, &l):
		return
	}
	way, err := w.net.Way(w.ctx, ns, netops.Packet{To: w.found.To})
	if err == nil && !way.Local {
		err = netops.ErrNotExist
	}
	switch {
	case isNotExist(err):
		w.stop("cnibox repair", "%s does not have the address %s", name, w.found.To)
		return
	case w.fail(err):
		return
	}
	w.step(name, "arrives", "on %s", a.IfName)
	if !w.found.From.IsValid() {
		return
	}
	if _, err := w.net.Way(w.ctx, ns, netops.Packet{To: w.found.From}); isNotExist(err) {
		w.stop("cnibox repair", "%s has no route back to %s", name, w.found.From)
	} else {
		w.err = err
	}
}

// hostLink returns a link of the host. If it is absent, the walk ends.
func (w *walker) hostLink(name string) *netops.LinkInfo {
	l := w.find(name)
	if l == nil {
		w.stop("cnibox diff", "this node has no interface %s", name)
	}
	return l
}

// find returns a link of the host, or nil.
func (w *walker) find(name string) *netops.LinkInfo {
	for i := range w.links {
		if w.links[i].Name == name {
			return &w.links[i]
		}
	}
	return nil
}

func kindOf(l *netops.LinkInfo) string {
	if l.Kind == "" {
		return "device of the host"
	}
	return l.Kind
}
