package path

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
)

// enter follows a frame that arrives at a link of the host.
func (w *walker) enter(l *netops.LinkInfo, mac string, next netip.Addr) {
	if l == nil || !w.usable(&w.host.Namespace, l) {
		return
	}
	if l.Master == "" {
		if !w.passesTunnel(l.Name, netip.Addr{}) || !w.knowsSender(l.Name) {
			return
		}
		w.step(view.HostName, "arrives", "on %s", l.Name)
		w.forward(l.Name)
		return
	}
	bridge := w.hostLink(l.Master)
	if bridge == nil {
		return
	}
	w.step(view.HostName, "port", "%s of %s", l.Name, bridge.Name)
	if !bridge.Up {
		w.stop(advice.Repair, "%s is down", bridge.Name)
		return
	}
	if !w.passesPort(l) || !w.passesPrograms(&w.host.Namespace, bridge.Name) {
		return
	}
	w.from = l
	if !w.passesFilters(look.Packet{In: l.Name, IsFrame: true}, look.Packet{Out: l.Name, IsFrame: true, IsReply: true}) {
		return
	}
	if slices.ContainsFunc(bridge.Addresses, func(p netip.Prefix) bool { return p.Addr() == next }) {
		if w.asks(bridge) && w.passesVLANs(bridge.Name, bridge.Name) && w.passesFilters(look.Packet{In: bridge.Name, IsLocal: true, IsARP: true}, look.Packet{Out: bridge.Name, IsLocal: true, IsARP: true, IsReply: true}) {
			w.forward(bridge.Name)
		}
		return
	}
	w.bridged(bridge, mac, next)
}

// passesPort reports whether a bridge's port passes frames.
func (w *walker) passesPort(l *netops.LinkInfo) bool {
	switch {
	case l.Master != "" && w.stopsBy(check.Port(w.host, l)):
	case l.Isolated && w.from != nil && w.from.Isolated && w.from.Master == l.Master:
		w.stop("bridge link set dev "+l.Name+" isolated off", "the ports %s and %s of %s are isolated from each other", w.from.Name, l.Name, l.Master)
	default:
		return true
	}
	return false
}

// passesVLANs reports whether a bridge that filters VLANs passes what the source sends without a tag to a port, or to itself.
func (w *walker) passesVLANs(bridge, to string) bool {
	if b := w.find(bridge); b == nil || !b.VLANFiltering {
		return true
	}
	from := bridge
	if w.from != nil {
		from = w.from.Name
	}
	sent, err := w.host.VLANs(from)
	if w.fail(err) {
		return false
	}
	received, err := w.host.VLANs(to)
	if w.fail(err) {
		return false
	}
	fix := advice.Repair
	if !w.isAttached(from) && !w.isAttached(to) {
		fix = ""
	}
	i := slices.IndexFunc(sent, func(v netops.VLAN) bool { return v.PVID })
	if i < 0 {
		w.stop(fix, "the bridge %s drops frames without a tag from %s, which has no native VLAN (PVID)", bridge, from)
		return false
	}
	id := sent[i].ID
	j := slices.IndexFunc(received, func(v netops.VLAN) bool { return v.ID <= id && id <= max(v.ID, v.End) })
	switch {
	case j < 0:
		w.stop(fix, "the bridge %s has %s in VLAN %d, and %s is not in it", bridge, from, id, to)
	case !received[j].Untagged && w.isAttached(to):
		w.stop(fix, "the bridge %s sends the frames of VLAN %d to %s with a tag", bridge, id, to)
	default:
		return true
	}
	return false
}

// asks reports whether the host asks for MACs on a bridge, and answers.
func (w *walker) asks(bridge *netops.LinkInfo) bool {
	if bridge.NoARP {
		w.stop("ip link set "+bridge.Name+" arp on", "%s asks for no MAC on %s and answers no request: its ARP is off", view.HostName, bridge.Name)
	}
	return !bridge.NoARP
}

// isAttached reports whether a link of the host is that of an attachment.
func (w *walker) isAttached(link string) bool {
	return slices.ContainsFunc(w.attachments, func(a inventory.Attachment) bool { return a.HostLink == link })
}

// passesPrograms reports whether no program of XDP and no filter of tc drops all packets of a link.
func (w *walker) passesPrograms(in *view.Namespace, link string) bool {
	where := in.Name
	p, err := check.Programs(in, link)
	if w.fail(err) {
		return false
	}
	for _, f := range p.Limit {
		fix, _ := w.advise(f.Fix)
		w.step(where, "limit", "%s: %s: '%s'", f.Name, f.Limits, fix)
	}
	w.limits = append(w.limits, p.Limit...)
	for _, f := range p.Unknown {
		w.step(where, "filter", "not known whether it drops the packet: %s", f.Name)
	}
	for _, f := range p.Drop {
		w.stop(f.Fix, "in %s the %s drops all packets", where, f.Name)
	}
	return len(p.Drop) == 0
}

// passesFilters reports whether the rules of other programs pass packets from the source to the destination, and their answers. It completes
// the packets, and also tries frames with ARP.
func (w *walker) passesFilters(packets ...look.Packet) bool {
	for _, p := range slices.Clone(packets) {
		if p.IsFrame && w.found.To.Is4() {
			p.IsARP = true
			packets = append(packets, p)
		}
	}
	for i := range packets {
		p := &packets[i]
		p.From, p.To, p.Protocol, p.Port, p.IsTranslated, p.Original = w.found.From, w.found.To, w.protocol(), w.port, w.translated, w.original
		if p.IsReply {
			p.From, p.To = p.To, p.From
		}
	}
	verdicts, err := w.host.Verdicts(packets...)
	if w.fail(err) {
		return false
	}
	for i, v := range verdicts {
		if len(v.Drops) > 0 {
			w.stop(exception(&v.Drops[0], &packets[i]), "a rule of another program drops %s: %s", map[bool]string{true: "the answer", false: "it"}[packets[i].IsReply], v.Drops[0].Rule)
			return false
		}
	}
	for i, v := range verdicts {
		if len(v.MayDrop) > 0 && !packets[i].IsFrame {
			w.step(view.HostName, "filter", "not known whether it drops the packet: %s; --probe shows it", strings.Join(v.MayDrop, ", "))
			break
		}
	}
	return true
}

// exception returns the command that lets a dropped packet pass.
func exception(d *look.Drop, p *look.Packet) string {
	return check.Exception(d, check.Packets{From: p.From, To: p.To, Original: p.Original.Addr(), In: []string{p.In}, Out: []string{p.Out}})
}

// bridged follows a frame that a bridge sends out of one of its ports, or that is for the bridge itself.
func (w *walker) bridged(bridge *netops.LinkInfo, mac string, next netip.Addr) {
	if !w.passesEntry(bridge, next) {
		return
	}
	if mac != "" {
		entry, err := w.host.ForwardingEntry(bridge.Name, mac)
		switch {
		case w.fail(err):
			return
		case entry.Local:
			w.forward(bridge.Name)
			return
		case entry.Known:
			w.step(view.HostName, "bridge", "%s sends %s to port %s", bridge.Name, mac, entry.Port)
			w.leave(entry.Port)
			return
		}
	}
	for i := range w.links { // the gateway of a VLAN
		l := &w.links[i]
		isNext := func(p netip.Prefix) bool { return p.Addr() == next }
		if port := w.otherEnd(l); port != nil && port.Master == bridge.Name && slices.ContainsFunc(l.Addresses, isNext) {
			w.leave(port.Name)
			return
		}
	}
	// Until the kernel has learnt it, the answer is the port of the attachment with the address.
	for i := range w.attachments {
		if a := &w.attachments[i]; a.Has(next) && w.isPort(a.HostLink, bridge.Name) {
			w.step(view.HostName, "bridge", "%s: port %s has %s", bridge.Name, a.HostLink, next)
			w.leave(a.HostLink)
			return
		}
	}
	var outside []string
	for i := range w.links {
		if l := &w.links[i]; l.Master == bridge.Name && !l.IsPairEnd() {
			outside = append(outside, l.Name)
		}
	}
	if len(outside) == 0 {
		w.stop("", "nobody on %s has %s", bridge.Name, next)
		return
	}
	w.step(view.HostName, "leaves", "by %s of %s; the network outside decides", strings.Join(outside, ", "), bridge.Name)
}

// passesEntry reports whether no static entry of a bridge leads frames for a container of this node to another port.
func (w *walker) passesEntry(bridge *netops.LinkInfo, next netip.Addr) bool {
	a := w.attachmentWith(next)
	if a == nil || !w.isPort(a.HostLink, bridge.Name) {
		return true
	}
	return !w.stopsBy(check.StaticEntry(w.host, w.find(a.HostLink), a.MAC, a.Title()))
}

// otherEnd returns the other end of a pair if the host has both, or nil.
func (w *walker) otherEnd(l *netops.LinkInfo) *netops.LinkInfo { return check.OtherEnd(w.links, l) }

func (w *walker) isPort(link, bridge string) bool {
	l := w.find(link)
	return l != nil && l.Master == bridge
}

// forward follows a packet that arrived at a link of the host and is not for a bridge's port.
func (w *walker) forward(in string) {
	w.in, w.from = in, nil
	w.hops++
	if w.hops > mostHops {
		w.stop("", "the routes of this node lead in a circle")
		return
	}
	if !w.translate() {
		return
	}
	own, err := w.host.Way(netops.Packet{To: w.found.To})
	if err == nil && own.Local {
		if w.passesFilters(look.Packet{In: in, IsLocal: true}) {
			w.step(view.HostName, "arrives", "%s is an address of this node", w.found.To)
		}
		return
	}
	if w.forwards(in) {
		w.send(netops.Packet{To: w.found.To, From: w.found.From, In: in})
	}
}

// forwards reports whether the host forwards what arrives at a link: the packet, or answers.
func (w *walker) forwards(in string) bool {
	return !w.stopsBy(check.Forwarding(w.host, in, w.found.To.Is6()))
}

// translate replaces the destination if it is a service or a published port. It reports whether the
// path goes on.
func (w *walker) translate() bool {
	service := netip.AddrPortFrom(w.found.To, w.port)
	known, err := w.host.Service(service)
	endpoints := known.Endpoints
	switch {
	case w.fail(err):
		return false
	case !known.IsKnown:
		return w.publishedPort()
	case w.port == 0:
		w.stop("", "%s is the address of a service of Kubernetes, which has ports only: give one, as %s:PORT", w.found.To, w.found.To)
		return false
	case len(endpoints) == 0:
		w.stop("", "the service %s has no endpoint: no pod of it is ready, see 'kubectl get endpointslices -A'", service)
		return false
	}
	text := endpoints[0].String()
	if others := len(endpoints) - 1; others > 0 {
		text += fmt.Sprintf(", and %d more; the path is that of the first", others)
	}
	w.step(view.HostName, "service", "kube-proxy translates %s to %s", service, text)
	leads := func(c netops.Connection) bool {
		return slices.ContainsFunc(endpoints, func(e netip.AddrPort) bool { return e.Addr() == c.Server })
	}
	if !w.passesTracked(service, w.forgetting+" "+service.String(), leads) {
		return false
	}
	w.found.To, w.port, w.translated = endpoints[0].Addr(), 0, true
	return true
}

func (w *walker) isHostAddress(a netip.Addr) bool {
	return slices.ContainsFunc(w.links, func(l netops.LinkInfo) bool {
		return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// send follows a packet that the host sends or forwards.
func (w *walker) send(p netops.Packet) {
	if p.In != "" {
		mark, err := w.host.RoutingMark(look.Packet{In: p.In, From: p.From, To: p.To, Protocol: w.protocol(), Port: w.port})
		if w.fail(err) {
			return
		}
		p.Mark = mark
		if mark != 0 {
			w.step(view.HostName, "mark", "rules of another program set the mark %#x", mark)
		}
		if !w.delegated(&p) {
			return
		}
	}
	way, link, ok := w.route(&w.host.Namespace, p)
	switch {
	case !ok:
		return
	case way.Local:
		w.step(view.HostName, "arrives", "%s is an address of this node", p.To)
		return
	}
	if !w.found.From.IsValid() {
		w.found.From = way.From
	}
	if p.In != "" && !w.forwards(link.Name) {
		return
	}
	packets := []look.Packet{{In: p.In, Out: link.Name}, {In: link.Name, Out: p.In, IsReply: true}}
	if p.In == "" {
		packets = []look.Packet{{Out: link.Name, IsLocal: true}}
	}
	if !w.passesFilters(packets...) || p.In != "" && !w.leavesWith(p) {
		return
	}
	if link.Kind == "wireguard" { // it has no neighbours
		if !w.passesTunnel(link.Name, netip.Addr{}) {
			return
		}
		w.step(view.HostName, "tunnel", "%s encrypts it for the node of %s: 'cnibox agent status' shows the address and the last handshake", link.Name, p.To)
		w.step(view.HostName, "leaves", "'cnibox path --in %s %s %s' on that node goes on", link.Name, w.found.From, w.found.To)
		return
	}
	next := w.next(way)
	switch mac, ok := w.neighbour(&w.host.Namespace, link.Name, next); {
	case !ok:
	case link.Kind == "bridge":
		if w.asks(link) {
			w.bridged(link, mac, next)
		}
	case link.Kind == "vxlan":
		w.tunnel(link, mac, next)
	case w.otherEnd(link) != nil && w.otherEnd(link).Master != "":
		w.enter(w.otherEnd(link), mac, next)
	default:
		w.leave(link.Name)
	}
}

// leavesWith names the address with which the host's rules for egressAddress send a packet on. It reports whether the path goes on.
func (w *walker) leavesWith(p netops.Packet) bool {
	a, err := w.host.EgressAddress(p.In, p.From, p.To)
	if w.fail(err) || !a.IsValid() {
		return err == nil
	}
	w.step(view.HostName, "source", "it leaves with %s, the egressAddress of %s", a, p.From)
	return !w.stopsBy(check.EgressAddress(w.host, a))
}

// tunnel follows a packet into a VXLAN device and the encapsulated packet to the underlay.
func (w *walker) tunnel(l *netops.LinkInfo, mac string, next netip.Addr) {
	if mac == "" {
		w.stop(w.tunnelFix(), "%s: the agent has not programmed the node of %s", check.NoNeighbour(l.Name, next), w.found.To)
		return
	}
	entry, err := w.host.ForwardingEntry(l.Name, mac)
	if w.fail(err) {
		return
	}
	if !entry.Remote.IsValid() {
		w.stop(w.tunnelFix(), "%s: the agent has not programmed the node of %s", check.NoForwarding(l.Name, mac), w.found.To)
		return
	}
	w.tunnelled = &tunnelled{device: l.Name, next: next, mac: mac, node: entry.Remote}
	w.step(view.HostName, "tunnel", "%s sends it to node %s", l.Name, entry.Remote)
	way, link, ok := w.route(&w.host.Namespace, netops.Packet{To: entry.Remote, Out: l.ParentName})
	if !ok || way.Local || !w.passesTunnel(l.Name, entry.Remote) {
		return
	}
	hop := entry.Remote
	if way.Via.IsValid() {
		hop = way.Via
	}
	if _, ok := w.neighbour(&w.host.Namespace, link.Name, hop); ok {
		w.otherNode(l.Name, link.Name, entry.Remote)
	}
}

// otherNode continues the path on another node of the lab. The packet arrives there on the
// device with the same name.
func (w *walker) otherNode(tunnel, out string, node netip.Addr) {
	var next *Node
	if w.Node != nil {
		var err error
		next, err = w.Node(node)
		if w.fail(err) {
			return
		}
	}
	from := w.found.From.String()
	if next == nil {
		w.step(view.HostName, "leaves", "by %s to node %s; 'cnibox path --in %s %s %s' there goes on", out, node, tunnel, from, w.found.To)
		return
	}
	w.step(view.HostName, "leaves", "by %s to node %s, %s of the lab", out, node, next.Name)
	b, err := next.Run("path", "--json", "--in", tunnel, from, w.found.To.String())
	var there Path
	if json.Unmarshal(b, &there) != nil {
		w.err = err // exit code 3 with JSON is a path that stops
		return
	}
	for _, s := range there.Steps {
		if s.Where == view.HostName {
			s.Where = next.Name
		}
		w.found.Steps = append(w.found.Steps, s)
	}
	if there.Stopped != "" {
		w.stop(cmp.Or(there.Fix, there.See), "%s: %s", next.Name, there.Stopped)
	}
	w.beyond = append(w.beyond, tracedPlace{name: next.Name, path: next.Netns})
	for _, p := range next.Pods {
		if p.Address == w.found.To {
			w.beyond = append(w.beyond, tracedPlace{name: p.Name, path: p.Netns})
		}
	}
}
