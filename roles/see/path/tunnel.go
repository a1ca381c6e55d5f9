package path

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/view"
)

// tunnelled is the way of a packet through a VXLAN device to another node.
type tunnelled struct {
	device string
	// next and mac are the addresses of the other node's device, and node is the node's own, as the kernel has them.
	next netip.Addr
	mac  string
	node netip.Addr
}

// judgeTunnel finds the reason for the silence behind a tunnel: what the agent knows about the other node, then what the node answers
// through the tunnel and outside of it. What cannot be told apart from here is named as such.
func (w *walker) judgeTunnel(t *tunnelled, packet string) error {
	agent, agentErr := doctor.AskAgent(w.ctx, w.node, w.Table)
	peer, since := w.peerOf(agent)
	name := "the node " + t.node.String()
	if peer != nil {
		name = fmt.Sprintf("%s (%s)", peer.Peer, t.node)
	}
	missing := func() string {
		switch {
		case peer == nil:
			return ""
		case peer.VTEP.IsValid() && peer.VTEP != t.node:
			return fmt.Sprintf("the forwarding entry of %s for %s leads to %s, and %s has %s", t.device, t.mac, t.node, peer.Peer, peer.VTEP)
		case peer.MAC != "" && peer.MAC != t.mac:
			return fmt.Sprintf("the neighbour entry for %s on %s has the MAC %s, and %s has %s", t.next, t.device, t.mac, peer.Peer, peer.MAC)
		}
		return ""
	}()
	if missing != "" {
		w.stop(w.fixAgent(), "%s", missing)
		return nil
	}
	switch {
	case agent != nil && peer == nil:
		w.step(view.HostName, "agent", "it has no node with %s: the entries are old", w.found.To)
	case agent == nil && agentErr != nil:
		w.step(view.HostName, "agent", "it is not known whether the entries for this node are old: %v", agentErr)
	case !since.IsZero():
		w.step(view.HostName, "agent", "%s does not answer through the tunnel since %s", name, since.Format(time.RFC3339))
	default:
		w.step(view.HostName, "agent", "%s answered through the tunnel when it was last asked", name)
	}
	if since.IsZero() {
		answers, err := w.answersTunnel(t)
		if err != nil {
			return err
		}
		if answers {
			w.stop("", "%s answers through the tunnel, and loses the %s: 'cnibox path --in %s %s %s' on that node goes on", name, packet, t.device, w.found.From, w.found.To)
			return nil
		}
	}
	return w.judgeNode(t, name, agent != nil && peer != nil)
}

// peerOf returns what the agent knows about the node of the destination, and since when it does not answer.
func (w *walker) peerOf(agent *doctor.Agent) (peer *doctor.Peer, silentSince time.Time) {
	if agent == nil {
		return nil, time.Time{}
	}
	for i := range agent.Nodes {
		if p := &agent.Nodes[i]; p.Subnet.IsValid() && p.Subnet.Contains(w.found.To) {
			peer = p
		}
	}
	for _, u := range agent.Unheard {
		if peer != nil && u.Peer == peer.Peer {
			silentSince = u.Since
		}
	}
	return peer, silentSince
}

// answersTunnel asks the other node's device through the tunnel.
func (w *walker) answersTunnel(t *tunnelled) (bool, error) {
	mac, err := net.ParseMAC(t.mac)
	if err != nil {
		return false, nil //nolint:nilerr // it cannot be asked
	}
	answered, _, err := tunnel.Answering(w.ctx, w.net, t.device, []tunnel.End{{MAC: mac, Addr: t.next}})
	return answered[t.next] > 0, err
}

// judgeNode asks a node that does not answer through the tunnel outside of it.
func (w *walker) judgeNode(t *tunnelled, name string, isKnown bool) error {
	way, err := w.host.Way(netops.Packet{To: t.node})
	if err != nil {
		return err
	}
	hop := t.node
	if way.Via.IsValid() {
		hop = way.Via
	}
	entry, err := w.host.Neighbour(way.Link, hop)
	if err != nil {
		return err
	}
	s, err := packets.OpenSender(w.net, nil, way.From, t.node, false)
	if err != nil {
		return err
	}
	defer s.Close()
	a, err := s.Send(w.ctx, 0, probePatience)
	if err != nil {
		return err
	}
	old := ""
	if !isKnown {
		old = "the forwarding entry leads to a node that has left; "
	}
	isOld := entry.Permanent && entry.MAC != "" && !slices.Contains(a.MACs, entry.MAC)
	switch {
	case isOld && len(a.MACs) > 0:
		w.stop(fmt.Sprintf("ip neigh change %s dev %s nud stale", hop, way.Link), "the permanent entry for %s on %s has the MAC %s, and %s answers", hop, way.Link, entry.MAC, strings.Join(a.MACs, ", "))
	case a.Small || len(a.MACs) > 0 && hop == t.node:
		refused, err := w.refusesTunnel(t)
		if err != nil {
			return err
		}
		if refused != "" {
			w.stop("", "packets of the tunnel to %s are refused %s: its device %s is down or absent, or a rule rejects them. Run 'cnibox doctor' there", name, refused, t.device)
			return nil
		}
		w.stop("", "%s answers %s, and not through the tunnel. It is not known why, one of: %sthe tunnel's UDP port is blocked between the nodes; "+
			"that node does not know this one, because its agent is stopped or has an old registry; its device %s is down. Run 'cnibox doctor' there", name, way.Link, old, t.device)
	default:
		fix := ""
		reason := "it is down, or the network between the nodes is"
		if isOld {
			fix, reason = fmt.Sprintf("ip neigh change %s dev %s nud stale", hop, way.Link), reason+", or the permanent entry for "+hop.String()+" is old"
		} else if !isKnown {
			fix = w.fixAgent()
		}
		w.stop(fix, "%s does not answer on %s either, one of: %s%s", name, way.Link, old, reason)
	}
	return nil
}

// refusesTunnel returns what an ICMP error says about packets to the other node's port of the tunnel, or "".
func (w *walker) refusesTunnel(t *tunnelled) (string, error) {
	all, err := w.host.Tunnels()
	i := slices.IndexFunc(all, func(d tunnel.Device) bool { return d.Name == t.device })
	if err != nil || i < 0 {
		return "", err
	}
	s, err := packets.OpenSender(w.net, nil, netip.Addr{}, t.node, true)
	if err != nil {
		return "", err
	}
	defer s.Close()
	a, err := s.Send(w.ctx, all[i].Port, probePatience)
	for _, r := range a.Refusals {
		if r.From.IsValid() && r.MTU == 0 {
			return fmt.Sprintf("by %s (%s)", r.From, r.Text), err
		}
	}
	if a.Port == packets.PortRefused {
		return "(port unreachable)", err
	}
	return "", err
}

// knowsSender reports whether this node accepts what the node of the source sends through a VXLAN device of the agent.
func (w *walker) knowsSender(device string) bool {
	l := w.find(device)
	from := w.found.From
	if l == nil || l.Kind != "vxlan" || !w.managed || !from.IsValid() {
		return true
	}
	unknown := func() bool {
		w.stop("", "this node has no way back to %s through %s: its agent does not know the node of that address, see 'cnibox agent status'", from, device)
		return false
	}
	way, err := w.host.Way(netops.Packet{To: from})
	switch {
	case isNotExist(err):
		return unknown()
	case w.fail(err):
		return false
	case way.Link != device:
		return true // another node's own address
	}
	next := from
	if way.Via.IsValid() {
		next = way.Via
	}
	entry, err := w.host.Neighbour(device, next)
	if w.fail(err) {
		return false
	}
	if entry.MAC == "" {
		return unknown()
	}
	forwarding, err := w.host.ForwardingEntry(device, entry.MAC)
	if w.fail(err) {
		return false
	}
	if !forwarding.Remote.IsValid() {
		return unknown()
	}
	accepts, err := w.acceptsNode(forwarding.Remote)
	if w.fail(err) {
		return false
	}
	if !accepts {
		w.stop(w.fixAgent(), "this node drops what %s sends through %s: it is not in the set of known nodes (table inet cnibox_overlay)", forwarding.Remote, device)
	}
	return accepts && w.passesTunnel(device, forwarding.Remote)
}
