package path

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
)

// mostHops limits a path through this node, for routes that lead in a circle.
const mostHops = 8

// walker follows one packet. It stops at the first error and at the first thing that stops the packet.
type walker struct {
	Request
	ctx  context.Context //nolint:containedctx // a walk is one call
	node *roles.Host
	net  *netops.Net
	// host is what the kernel says about the host's namespace.
	host        *view.Host
	attachments []inventory.Attachment
	// ends are the containers of the path's ends.
	ends []string
	// records keep fixes from removing what attachments need.
	records *advice.Records
	// links are the host's.
	links []netops.LinkInfo
	// port is the destination's port, or 0. translated means that the destination is not that of the first packet.
	port       uint16
	translated bool
	// original is the destination before a published port was translated, or invalid.
	original netip.AddrPort
	hops     int
	// translator is the last rule of another program on the host that accepted a packet of the probe, as one that translates it does.
	translator *packets.Event
	// forgetting is the command that does, without the service.
	forgetting string
	// in is the host's link by which it arrived, or "".
	in string
	// from is the bridge's port by which the packet entered, or nil.
	from *netops.LinkInfo
	// managed is true if an agent sets the MTU of tunnels.
	managed bool
	// beyond has what a probe traces on another node.
	beyond []tracedPlace
	// tunnelled is the tunnel through which the packet leaves for another node, or nil.
	tunnelled *tunnelled
	// limits are the queueing disciplines of other programs on the path that drop packets or are slow.
	limits []netops.DeviceFilter
	// asked are the neighbours on the path.
	asked []askedNeighbour
	// deniedBy is the verdict of network policies that stops the packet, or nil.
	deniedBy *netpolicy.Verdict
	// isTracked means that a tracked connection stops the packets of one of the source's ports.
	isTracked bool
	found     Path
	err       error
}

// protocol returns that of the port.
func (w *walker) protocol() string {
	if w.IsUDP {
		return "udp"
	}
	return "tcp"
}

// askedNeighbour is an address whose MAC a namespace needs on a link.
type askedNeighbour struct {
	in   *view.Namespace
	link string
	ip   netip.Addr
}

func (w *walker) step(where, what, format string, a ...any) {
	w.found.Steps = append(w.found.Steps, Step{where, what, fmt.Sprintf(format, a...)})
}

// stop ends the path. A fix that would take something from other attachments is replaced.
func (w *walker) stop(fix, format string, a ...any) {
	fix, harm := w.advise(fix)
	w.found.Stopped = fmt.Sprintf(format, a...)
	w.found.Fix, w.found.See = advice.Split(fix)
	if harm != "" {
		w.found.Stopped += ", and no command is safe: " + harm
	}
}

// advise returns a fix, or what to do instead, and why.
func (w *walker) advise(fix string) (instead, harm string) {
	var networks []string
	for _, end := range []netip.Addr{w.found.From, w.found.To} {
		if a := w.attachmentWith(end); a != nil {
			networks = append(networks, a.Network)
		}
	}
	return w.records.Fix(fix, networks...)
}

// stopsBy ends the path if a check has found a fault, and the walk if it could not read, and reports whether it does.
func (w *walker) stopsBy(f *check.Fault, err error) bool {
	if f != nil {
		w.stop(f.Fix, "%s", f.Text)
	}
	return w.fail(err) || f != nil
}

// fail ends the walk with an error, and reports whether there is one.
func (w *walker) fail(err error) bool {
	w.err = err
	return err != nil
}

// walk follows the packet from its source.
func (w *walker) walk(source *end) {
	if source.in == nil {
		if !w.translate() {
			return
		}
		w.send(netops.Packet{To: w.found.To})
		return
	}
	way, link, ok := w.route(source.in, netops.Packet{To: w.found.To})
	if !ok {
		return
	}
	if way.Local {
		w.step(source.name, "arrives", "%s is the container's own address", w.found.To)
		return
	}
	next := w.next(way)
	mac, ok := w.neighbour(source.in, link.Name, next)
	if !ok || !w.passesPrograms(source.in, link.Name) {
		return
	}
	outside, err := source.in.HostEnd(link.Name)
	if isNotExist(err) {
		w.step(source.name, "leaves", "by %s, a %s; the network outside decides", link.Name, kindOf(link))
		return
	}
	if w.fail(err) {
		return
	}
	w.enter(w.hostLink(outside.Name), mac, next)
}

// route asks for the way of a packet and checks the outgoing link.
func (w *walker) route(in *view.Namespace, p netops.Packet) (way netops.Way, link *netops.LinkInfo, ok bool) {
	where := in.Name
	way, err := in.Way(p)
	refusal := &netops.RouteRefusal{}
	switch {
	case way.Refused:
		w.refused(in, p)
		return way, link, false
	case errors.As(err, &refusal):
		fix := refusal.Fix
		switch e := w.egress(p); {
		case !in.IsHost():
			fix = "" // the command is for this node's namespace
		case w.err != nil:
			return way, link, false
		case e != nil && e.Object == refusal.By: // it refuses more than this packet
			fix = e.Fix
		}
		w.stop(fix, "%s has no route to %s: %s refuses it", where, p.To, refusal.By)
		return way, link, false
	case isNotExist(err):
		switch {
		case in.IsHost() && !w.answers(p.To):
		case in.IsHost():
			w.stop("", "%s has no route to %s", where, p.To)
			e, failed := check.DefaultRoute(w.host, p.To.Is6())
			if !w.fail(failed) && e != nil && !netops.IsUnreachable(err) {
				w.stop(e.Fix, "%s has no route to %s: %s", where, p.To, e.Text)
			}
		case p.To.Is6() && w.lacksIPv6(in):
		case w.hadRoute(w.found.From, p.To):
			w.stop(advice.Repair, "%s has no route to %s: it was deleted", where, p.To)
		default:
			w.stop("", "%s has no route to %s: its network gives it none, see isDefaultGateway or ipam.routes", where, p.To)
		}
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
	link, err = in.Link(way.Link)
	return way, link, !w.fail(err) && w.usable(in, link)
}

// egress returns why the host cannot send a pod's packet to another network, or nil if it can or if no pod sent the packet.
func (w *walker) egress(p netops.Packet) *check.NoEgress {
	a := w.attachmentWith(p.From)
	if a == nil || p.In == "" {
		return nil
	}
	i := slices.IndexFunc(a.Addresses, func(own netip.Prefix) bool { return own.Addr() == p.From })
	e, err := check.Egress(w.host, p.In, a.Addresses[i])
	w.fail(err)
	return e
}

// lacksIPv6 reports whether IPv6 is disabled in a container.
func (w *walker) lacksIPv6(in *view.Namespace) bool {
	i := slices.IndexFunc(w.attachments, func(a inventory.Attachment) bool { return a.Title() == in.Name })
	if i < 0 {
		return false
	}
	return w.stopsBy(check.IPv6(in, w.attachments[i].IfName))
}

// hadRoute reports whether the attachment of an address was given a route to another address.
func (w *walker) hadRoute(from, to netip.Addr) bool {
	a := w.attachmentWith(from)
	if a == nil {
		return false
	}
	has := func(p netip.Prefix) bool { return p.Masked().Contains(to) }
	return slices.ContainsFunc(a.Addresses, has) || slices.ContainsFunc(a.Routes, func(route string) bool {
		dst, _, _ := strings.Cut(route, " ")
		p, err := netip.ParsePrefix(dst)
		return err == nil && has(p)
	})
}

// answers checks that the host's route for the answers to a pod leads to it, and reports whether it does.
func (w *walker) answers(to netip.Addr) bool {
	a := w.attachmentWith(to)
	if a == nil {
		return true
	}
	want, have, fix, err := check.PodRoute(w.host, a.HostLink, to, true)
	if !w.fail(err) && have != "" {
		w.stop(fix, "%s does not route packets to %s of %s by %s: %s", view.HostName, to, a.Title(), want, have)
	}
	return err == nil && have == ""
}

// refused says why the kernel refuses a packet because of its source.
func (w *walker) refused(in *view.Namespace, p netops.Packet) {
	where := in.Name
	if in.IsHost() && !w.answers(p.From) {
		return
	}
	mode, fix, err := check.ReversePath(in, p.In)
	if p.From.Is4() && err == nil && mode > check.SourceUnchecked {
		if l := w.find(p.In); in.IsHost() && l != nil && !slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr().Is4() }) {
			fix = "" // the kernel refuses them with 2, too, if the interface has no address
		}
		w.stop(fix, "%s refuses packets from %s that arrive on %s (rp_filter): its route to %s leads elsewhere", where, p.From, p.In, p.From)
		return
	}
	w.stop("", "%s refuses packets from %s that arrive on %s: it is an address of %s, or not of one interface", where, p.From, p.In, where)
}

// passesTunnel looks for what keeps the datagrams of a tunnel from a node, or from all nodes for an invalid address,
// or theirs from it. It reports whether the path goes on.
func (w *walker) passesTunnel(name string, node netip.Addr) bool {
	tunnels, err := w.host.Tunnels()
	i := slices.IndexFunc(tunnels, func(t tunnel.Device) bool { return t.Name == name })
	if w.fail(err) || i < 0 {
		return err == nil
	}
	t := tunnels[i]
	if node.IsValid() {
		t.Peers = slices.DeleteFunc(slices.Clone(t.Peers), func(a netip.AddrPort) bool { return a.Addr() != node })
	}
	found, err := w.host.TunnelFaults(&t, w.managed)
	for _, f := range found {
		fix, _ := w.advise(f.Fix)
		switch isMTU := f.Kind == tunnel.RouteMTU || f.Kind == tunnel.LinkMTU; {
		case isMTU:
			w.step(view.HostName, "mtu", "%s: '%s'", &f, fix)
		case len(f.Peers) < len(t.Peers):
			w.step(view.HostName, "tunnel", "%s: '%s'", &f, fix)
		default:
			w.stop(f.Fix, "%s", &f)
			return false
		}
	}
	return !w.fail(err)
}

// next is the address to which the packet goes on a link.
func (w *walker) next(way netops.Way) netip.Addr {
	if way.Via.IsValid() {
		return way.Via
	}
	return w.found.To
}

// usable checks that a link carries packets.
func (w *walker) usable(in *view.Namespace, l *netops.LinkInfo) bool {
	if master := w.recordedMaster(l.Name); in.IsHost() && master != "" && master != l.Master {
		w.stop(advice.Repair, "%s is not a port of %s any more", l.Name, master)
		return false
	}
	if w.stopsBy(check.Up(in, l, !in.IsHost() || attachment.Labelled(*l)), nil) {
		return false
	}
	return !in.IsHost() || w.passesPrograms(in, l.Name)
}

// recordedMaster returns the bridge of which an attachment made a link of the host a port, or "".
func (w *walker) recordedMaster(link string) string {
	for i := range w.attachments {
		for _, c := range w.attachments[i].Made {
			if l, is := c.Do.Object.(*netops.Link); is && l.In == netops.Host && l.Name == link && l.Master != "" {
				return l.Master
			}
		}
	}
	return ""
}

// neighbour returns the MAC of a neighbour, or "" if the kernel has yet to ask for it, or sends without one.
func (w *walker) neighbour(in *view.Namespace, link string, ip netip.Addr) (mac string, ok bool) {
	l, err := in.Link(link)
	if w.fail(err) {
		return "", false
	}
	if l.IsPairEnd() && l.NoARP {
		return "", true
	}
	w.asked = append(w.asked, askedNeighbour{in, link, ip})
	where := in.Name
	n, err := in.Neighbour(link, ip)
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
	return n.MAC, !w.stopsBy(check.Entry(in, link, ip, w.macs(ip)))
}

// macs returns the MACs that an address has on this node. It has several if it is that of a gateway.
func (w *walker) macs(ip netip.Addr) (all []string) {
	for i := range w.attachments {
		if a := &w.attachments[i]; a.Has(ip) {
			all = append(all, a.MAC)
		}
	}
	if len(all) > 0 {
		return all
	}
	for i := range w.links {
		l := &w.links[i]
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == ip }) {
			all = append(all, l.MAC)
		}
	}
	return all
}

// inside begins a command that runs in the namespace of a container, and is "" for the host.
func (w *walker) inside(name string) string {
	for i := range w.attachments {
		if a := &w.attachments[i]; a.Title() == name && a.Netns != "" {
			return "nsenter --net=" + a.Netns + " "
		}
	}
	return ""
}

// leave follows a frame that the host sends on a link: into a container, or out of the node.
func (w *walker) leave(link string) {
	l := w.hostLink(link)
	if l == nil || !w.usable(&w.host.Namespace, l) || !w.passesPort(l) || l.Master != "" && !w.passesVLANs(l.Master, l.Name) {
		return
	}
	from := "" // the bridge itself
	var packets []look.Packet
	if w.from != nil {
		from = w.from.Name
		key := "net/bridge/bridge-nf-call-iptables"
		if w.found.To.Is6() {
			key = "net/bridge/bridge-nf-call-ip6tables"
		}
		if calls, err := w.host.Sysctl(key); err == nil && calls == "1" { // the rules for forwarded packets see them
			packets = []look.Packet{{In: l.Master, Out: l.Master}, {In: l.Master, Out: l.Master, IsReply: true}}
		}
	}
	packets = append(packets, look.Packet{In: from, Out: link, IsFrame: true}, look.Packet{In: link, Out: from, IsFrame: true, IsReply: true})
	if l.Master != "" && !w.passesFilters(packets...) {
		return
	}
	i := slices.IndexFunc(w.attachments, func(a inventory.Attachment) bool { return a.HostLink == link })
	switch end := w.otherEnd(l); {
	case i >= 0:
	case end != nil && l.Master != "":
		w.forward(end.Name)
		return
	default:
		w.step(view.HostName, "leaves", "by %s", link)
		return
	}
	w.arrive(&w.attachments[i])
}

// arrive checks the container at the end of the path: that it has the address, and a route back.
func (w *walker) arrive(a *inventory.Attachment) {
	name := a.Title()
	if other := w.attachmentWith(w.found.To); other != nil && a.Has(w.found.To) && other.ContainerID != a.ContainerID {
		old, now := a, other
		if other.Created.Before(a.Created) {
			old, now = other, a
		}
		networks, err := w.networks()
		if !w.fail(err) {
			w.stop(doctor.Separate(networks, old.Key(), now.Key(), now.Pod), "it arrives at %s, which has the address %s on %s, and so has %s on %s",
				name, w.found.To, a.Network, other.Title(), other.Network)
		}
		return
	}
	in, err := w.host.Open(name, a.Netns)
	if err != nil {
		w.stop("cnibox state reap", "the namespace of %s cannot be opened: %v", name, err)
		return
	}
	l, err := in.Link(a.IfName)
	switch {
	case isNotExist(err):
		w.stop(advice.Repair, "%s has no interface %s", name, a.IfName)
		return
	case w.fail(err), !w.usable(in, l):
		return
	}
	way, err := in.Way(netops.Packet{To: w.found.To})
	if err == nil && !way.Local {
		err = netops.ErrNotExist
	}
	switch {
	case isNotExist(err):
		w.stop(advice.Repair, "%s does not have the address %s", name, w.found.To)
		return
	case w.fail(err):
		return
	}
	w.step(name, "arrives", "on %s", a.IfName)
	if !w.found.From.IsValid() {
		return
	}
	if _, err := in.Way(netops.Packet{To: w.found.From}); isNotExist(err) {
		w.stop(advice.Repair, "%s has no route back to %s", name, w.found.From)
	} else {
		w.err = err
	}
}

// hostLink returns a link of the host. If it is absent, the walk ends.
func (w *walker) hostLink(name string) *netops.LinkInfo {
	l := w.find(name)
	if l == nil {
		fix := ""
		if w.isAttached(name) {
			fix = advice.Repair
		}
		w.stop(fix, "this node has no interface %s", name)
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
