package path

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/netops/sockets"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
)

// probePatience is how long a probe waits for answers.
const probePatience = time.Second

// tracedPlace is a namespace on the path, and what its trace has recorded.
type tracedPlace struct {
	name string
	// path is that of a namespace which the probe opens and closes. Otherwise ns is the
	// source's, or nil for the host's.
	path   string
	ns     *netops.Namespace
	trace  *packets.Trace
	events []packets.Event
}

// probe sends packets from the source, and compares the result with the walk: an answer
// refutes a reason to stop that the walk has found.
func (w *walker) probe(source *end, to netip.AddrPort) error {
	if !w.found.From.IsValid() {
		way, err := w.net.Way(w.ctx, source.ns(), netops.Packet{To: to.Addr()})
		if isNotExist(err) {
			return nil // the walk has reported it
		}
		if err != nil {
			return err
		}
		w.found.From = way.From
	}
	s, err := packets.OpenSender(w.net, source.ns(), w.found.From, to.Addr(), w.IsUDP)
	if err != nil && w.found.Stopped != "" {
		return nil // for the same reason
	}
	if err != nil {
		return err
	}
	defer s.Close()
	flow := packets.Flow{From: w.found.From, ID: s.ID()}
	places, err := w.openTraces(source, flow)
	defer func() {
		for _, p := range places {
			p.close(w.ctx)
		}
	}()
	if err != nil {
		return err
	}
	lost := watchDrops(w.ctx, flow, to.Addr())
	answers, err := s.Send(w.ctx, to.Port(), probePatience)
	lost.close(w.ctx)
	w.host.Forget() // the kernel has asked for neighbours, and learnt entries
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range places {
		p := &places[i]
		if p.trace == nil {
			continue
		}
		p.events, err = p.trace.Read(w.ctx)
		if err != nil {
			return err
		}
	}
	w.reportAnswers(source, to, &answers)
	return w.judge(to, &answers, places, lost)
}

// maxLost limits the reports of one probe.
const maxLost = 100

// lostPackets collects the kernel's reports about the probe's packets, of all namespaces.
type lostPackets struct {
	monitor *packets.Drops
	// err is the reason why there are no reports.
	err  error
	stop context.CancelFunc
	done chan struct{}
	all  []lostPacket
}

// lostPacket is a packet of the probe that the kernel dropped.
type lostPacket struct {
	proto, cause string
	reply        bool
}

// watchDrops collects reports until close. It is no error that another program receives them, or that the kernel has none.
func watchDrops(ctx context.Context, f packets.Flow, to netip.Addr) *lostPackets {
	l := &lostPackets{done: make(chan struct{})}
	l.monitor, l.err = packets.OpenDrops(ctx)
	if l.err != nil {
		return l
	}
	ctx, l.stop = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		for ctx.Err() == nil {
			_, err := l.monitor.Next(ctx, func(d packets.Drop) {
				if reply, ok := d.In(f, to); ok && len(l.all) < maxLost {
					l.all = append(l.all, lostPacket{strings.TrimSuffix(d.Proto, "v6"), d.Cause(), reply})
				}
			})
			if err != nil && ctx.Err() == nil {
				l.err = err
				return
			}
		}
	}()
	return l
}

func (l *lostPackets) close(ctx context.Context) {
	if l.monitor != nil {
		l.stop()
		<-l.done
		_ = l.monitor.Close(ctx) // the next reader takes over what is left
	}
}

// reportDrops adds a step for each way in which packets of a protocol were lost, and returns the first, or nil.
func (w *walker) reportDrops(l *lostPackets, proto string) (first *lostPacket) {
	var known []lostPacket
	for i := range l.all {
		if p := &l.all[i]; p.proto == proto && !slices.Contains(known, *p) {
			known = append(known, *p)
			w.step("kernel", "dropped", "%s: %s", w.packetName(proto, p.reply), p.cause)
		}
	}
	if l.err != nil {
		w.step("kernel", "dropped", "not known: %v", l.err)
	}
	if len(known) == 0 {
		return nil
	}
	return &known[0]
}

// openTraces starts a trace in every namespace on the path that this node has.
func (w *walker) openTraces(source *end, f packets.Flow) (places []tracedPlace, err error) {
	if source.in != nil {
		places = append(places, tracedPlace{name: source.name, ns: source.ns()})
	}
	places = append(places, tracedPlace{name: view.HostName})
	if a := w.attachmentWith(w.found.To); a != nil && a.Title() != source.name {
		places = append(places, tracedPlace{name: a.Title(), path: a.Netns})
	}
	places = append(places, w.beyond...)
	for i := range places {
		p := &places[i]
		if p.path != "" {
			p.ns, err = w.net.OpenNamespace(p.path)
			if err != nil {
				continue // the walk has reported it
			}
		}
		p.trace, err = packets.OpenTrace(w.ctx, p.ns, f)
		switch {
		case errors.Is(err, netops.ErrNotSupported):
			w.step(p.name, "trace", "not possible: %v", err)
		case errors.Is(err, netops.ErrBusy):
			return places, advice.With(err, "the same call when the other probe has ended")
		case err != nil:
			return places, err
		}
	}
	return places, nil
}

func (p *tracedPlace) close(ctx context.Context) {
	if p.trace != nil {
		_ = p.trace.Close(ctx) // the next probe removes what is left
	}
	if p.path != "" && p.ns != nil {
		_ = p.ns.Close()
	}
}

// reportAnswers adds a step for each kind of packet.
func (w *walker) reportAnswers(source *end, to netip.AddrPort, a *packets.Answers) {
	if a.ARPSent && len(w.asked) > 0 {
		text := "nobody answers"
		switch len(a.MACs) {
		case 0:
		case 1:
			text = "answer from " + a.MACs[0]
		default:
			text = "several answer: " + strings.Join(a.MACs, ", ")
		}
		w.step(source.name, "arp", "%s on %s: %s", w.asked[0].ip, w.asked[0].link, text)
	}
	answer := map[bool]string{true: "answer", false: "no answer"}
	w.step(source.name, "ping", "%s: %s", to.Addr(), answer[a.Small])
	w.step(source.name, "ping", "%s with %d bytes and DF: %s", to.Addr(), a.MTU, answer[a.Large])
	for _, r := range a.Refusals {
		from, mtu := source.name, ""
		if r.From.IsValid() {
			from = r.From.String()
		}
		if r.MTU != 0 {
			mtu = fmt.Sprintf(": its next link carries %d bytes", r.MTU)
		}
		w.step(source.name, "refused", "by %s: %s%s", from, r.Text, mtu)
	}
	if to.Port() == 0 {
		return
	}
	text := a.Port
	switch {
	case text == "":
		text = "no answer"
	case text == packets.PortRefused && w.IsUDP:
		text = "refused (ICMP): no server is at the port"
	case text == packets.PortRefused:
		text = "refused (RST)"
	}
	w.step(source.name, w.protocol(), "%s: %s", to, text)
}

// judge adds what the traces show, and says whether the packet arrives.
func (w *walker) judge(to netip.AddrPort, a *packets.Answers, places []tracedPlace, l *lostPackets) error {
	proto, answered := "icmp", a.Small || a.Large
	if to.Port() != 0 {
		proto, answered = w.protocol(), slices.Contains([]string{packets.PortConnected, packets.PortAnswered, packets.PortRefused}, a.Port)
	}
	var last *packets.Event
	var where string
	for _, reply := range []bool{false, true} {
		for i := range places {
			p := &places[i]
			if reply {
				p = &places[len(places)-1-i]
			}
			if e := w.reportTrace(p, proto, reply); e != nil {
				last, where = e, p.name
			}
		}
	}
	var drop *packets.Event
	for i := range places {
		for j := range places[i].events {
			if e := &places[i].events[j]; drop == nil && e.Proto == proto && e.Verdict == "drop" {
				drop, last, where = e, e, places[i].name
			}
		}
	}
	var lost *lostPacket
	if !answered && drop == nil {
		lost = w.reportDrops(l, proto)
	}
	switch {
	case w.deniedBy != nil && !answered:
	case drop != nil && (!answered || !drop.Reply): // an RST with a drop is a rejection; a dropped answer may be a copy
		w.stop(w.inside(where)+drop.Exception(), "%s drops the %s: %s", where, w.packetName(proto, drop.Reply), drop.String())
	case len(a.MACs) > 1:
		w.stopTwice(w.asked[0].ip, a.MACs)
	case a.Port == packets.PortRefused && w.listensLocally(to):
	case len(w.limits) > 0 && (!answered || !a.Large):
		w.stop(w.limits[0].Fix, "the %s limits the packets: %s", w.limits[0].Name, w.limits[0].Limits)
	case answered && a.Small && !a.Large && !slices.ContainsFunc(a.Refusals, func(r packets.Refusal) bool { return r.MTU != 0 }):
		w.reportDrops(l, "icmp")
		w.stop("", "packets of %d bytes are lost and small ones arrive: a link on the path has a smaller MTU, and no router reports it", a.MTU)
	case answered:
		if w.found.Stopped != "" && !w.isTracked {
			w.step(view.HostName, "answered", "although: %s", w.found.Stopped)
			w.stop("", "")
		}
	case w.found.Stopped != "":
	case proto == "udp" && lost == nil && last != nil && last.Hook == "input" && !last.Reply:
		w.step(where, "udp", "the datagram arrives; a server need not answer an empty one")
	case proto == "udp" && lost == nil && a.Small && last != nil && strings.HasSuffix(last.Hook, "postrouting"):
		w.step(where, "udp", "the datagram leaves by %s, and the pings are answered; a server need not answer an empty datagram", last.Out)
	default:
		return w.judgeSilence(proto, a, last, where, lost)
	}
	return nil
}

// stopTwice names who has an address, of which several interfaces answer.
func (w *walker) stopTwice(ip netip.Addr, macs []string) {
	owner, fix := w.attachmentWith(ip), ""
	for i := range w.attachments {
		if a := &w.attachments[i]; a != owner && slices.Contains(macs, a.MAC) {
			fix = w.inside(a.Title()) + "ip addr del " + w.prefixIn(a, ip) + " dev " + a.IfName +
				" && " + w.asked[0].in.Enter + "ip neigh flush to " + ip.String() + " dev " + w.asked[0].link
			w.step(a.Title(), "address", "%s answers for %s", a.MAC, ip)
		}
	}
	w.stop(fix, "several interfaces have the address %s: %s", ip, strings.Join(macs, ", "))
}

// prefixIn returns an address of an attachment's interface with its prefix length, as far as that is known.
func (w *walker) prefixIn(a *inventory.Attachment, ip netip.Addr) string {
	if ns, err := w.net.OpenNamespace(a.Netns); err == nil {
		defer func() { _ = ns.Close() }() // it was only read
		all, _ := w.net.Addresses(w.ctx, ns, a.IfName)
		if i := slices.IndexFunc(all, func(p netip.Prefix) bool { return p.Addr() == ip }); i >= 0 {
			return all[i].String()
		}
	}
	return ip.String()
}

// listensLocally reports whether the server at a port of a container receives connections from the container only.
func (w *walker) listensLocally(to netip.AddrPort) bool {
	a := w.attachmentWith(w.found.To)
	if a == nil {
		return false
	}
	ns, err := w.net.OpenNamespace(a.Netns)
	if err != nil {
		return false
	}
	defer func() { _ = ns.Close() }() // it was only read
	var all []sockets.Listener
	err = ns.Run(func() error {
		all, err = sockets.Listeners(w.ctx, []sockets.PortRange{{Proto: w.protocol(), First: to.Port(), Last: to.Port()}})
		return err
	})
	isElsewhere := func(l sockets.Listener) bool { return !l.Addr.IsLoopback() }
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, isElsewhere) {
		return false
	}
	w.stop("", "the server in %s listens at %s only: let it listen at 0.0.0.0 or ::", a.Title(), netip.AddrPortFrom(all[0].Addr, all[0].Port))
	return true
}

// stopExpired says where a packet's time to live ended, and which rule set it.
func (w *walker) stopExpired(at netip.Addr) error {
	verdicts, err := w.host.Verdicts(look.Packet{In: w.in, From: w.found.From, To: w.found.To})
	if err != nil {
		return err
	}
	if all := verdicts[0].Shortened; len(all) > 0 {
		w.stop(all[0].Exception(w.addresses()), "the time to live (TTL) of the packet ends at %s: a rule of another program sets it: %s", at, strings.TrimSuffix(all[0].Rule, ": drop"))
		return nil
	}
	w.stop("", "the time to live (TTL) of the packet ends at %s: the sender sets it too small, or routes lead in a circle", at)
	return nil
}

// ignoresARP returns the setting with which the host does not answer requests for one of its addresses, and what mends it, or "".
func (w *walker) ignoresARP(ip netip.Addr) (text, fix string) {
	for _, of := range []string{"all", w.in} {
		key := "net/ipv4/conf/" + of + "/arp_ignore"
		const most = "2" // more is for addresses of a scope, or for all
		if v, err := w.host.Sysctl(key); err == nil && v > most && ip.Is4() && w.isHostAddress(ip) {
			return fmt.Sprintf(": /proc/sys/%s is %s", key, v), "sysctl -w " + key + "=" + most
		}
	}
	return "", ""
}

// addresses returns conditions on the packet.
func (w *walker) addresses() (nft, iptables string) { return check.Between(w.found.From, w.found.To) }

// judgeSource looks at the source address with which a packet left the host. It reports whether that is the reason for its silence.
func (w *walker) judgeSource(last *packets.Event) (bool, error) {
	to := w.found.To
	verdicts, err := w.host.Verdicts(look.Packet{In: w.in, Out: last.Out, From: w.found.From, To: to},
		look.Packet{In: last.Out, Out: w.in, From: to, IsReply: true})
	if err != nil {
		return false, err
	}
	if sent, answer := verdicts[0].Zoned, verdicts[1].Zoned; len(sent) > 0 != (len(answer) > 0) {
		rule, fix := slices.Concat(sent, answer)[0], "" // NAT has yet to give an answer its destination
		if len(sent) > 0 {
			fix = rule.Exception(w.addresses())
		}
		w.stop(fix, "its answer is of another zone of connection tracking, so nothing translates it back: %s", strings.TrimSuffix(rule.Rule, ": drop"))
		return true, nil
	}
	for i := range verdicts[0].Untracked {
		d := &verdicts[0].Untracked[i]
		w.stop(d.Exception(w.addresses()), "a rule of another program keeps it from connection tracking, so nothing masquerades it: %s", strings.TrimSuffix(d.Rule, ": drop"))
		return true, nil
	}
	seen, err := w.net.SeenSources(w.ctx, w.found.From, to)
	for _, a := range seen {
		if a == w.found.From || w.isHostAddress(a) {
			continue
		}
		text, fix := "", ""
		if w.translator != nil {
			text, fix = ": "+w.translator.String(), w.translator.Exception()
		}
		w.stop(fix, "it leaves with the source %s, which is no address of this node, so no answer arrives%s", a, text)
		return true, nil
	}
	return false, err
}

// packetName names the packet of a probe.
func (w *walker) packetName(proto string, reply bool) string {
	switch {
	case proto == "udp" && reply:
		return "answer to the datagram"
	case proto == "udp":
		return "datagram"
	case proto == "tcp" && reply:
		return "answer to the SYN"
	case proto == "tcp":
		return "SYN"
	case reply:
		return "echo reply"
	}
	return "echo request"
}

// reportTrace adds a step for the hooks that packets of a protocol and direction reached
// in one place, and one for every decision. It returns the last hook, or nil.
func (w *walker) reportTrace(p *tracedPlace, proto string, reply bool) (last *packets.Event) {
	var hooks []string
	var decisions []string
	for i := range p.events {
		e := &p.events[i]
		if e.Proto != proto || e.Reply != reply {
			continue
		}
		if e.Hook == "" {
			if e.Verdict == "accept" && !reply && p.name == view.HostName && !strings.HasPrefix(e.Chain, "inet cnibox ") {
				w.translator = e
			}
			if text := e.String(); !slices.Contains(decisions, text) {
				decisions = append(decisions, text)
			}
			continue
		}
		last = e
		text := e.Hook
		if e.In != "" && strings.HasSuffix(e.Hook, "prerouting") {
			text += " from " + e.In
		}
		if e.Out != "" && strings.HasSuffix(e.Hook, "postrouting") {
			text += " to " + e.Out
		}
		if !slices.Contains(hooks, text) { // there are several packets of a protocol
			hooks = append(hooks, text)
		}
	}
	name := w.packetName(proto, reply)
	if len(hooks) > 0 {
		w.step(p.name, "traced", "%s: %s", name, strings.Join(hooks, ", "))
	}
	for _, text := range decisions {
		w.step(p.name, "rule", "%s: %s", name, text)
	}
	return last
}

// judgeSilence finds the reason for an absent answer that no rule explains.
func (w *walker) judgeSilence(proto string, a *packets.Answers, last *packets.Event, where string, lost *lostPacket) error {
	for _, r := range a.Refusals {
		if r.Expired {
			return w.stopExpired(r.From)
		}
	}
	if t := w.tunnelled; t != nil && last != nil && where == view.HostName && strings.HasSuffix(last.Hook, "postrouting") && last.Out == t.device {
		return w.judgeTunnel(t, w.packetName(proto, false))
	}
	for _, n := range w.asked {
		silent, err := check.Silent(n.in, n.link, n.ip)
		if err != nil {
			return err
		}
		if silent != nil {
			text, fix := w.ignoresARP(n.ip)
			w.stop(fix, "%s%s", silent.Text, text)
			return nil
		}
		have, err := n.in.Neighbour(n.link, n.ip)
		if err != nil {
			return err
		}
		if have.Permanent && last != nil && strings.HasSuffix(last.Hook, "postrouting") && last.Out == n.link && len(w.macs(n.ip)) == 0 {
			w.stop(fmt.Sprintf("%sip neigh change %s dev %s nud stale", n.in.Enter, n.ip, n.link), // it stays, and the kernel asks whether it is right
				"%s sends it to %s, and no answer arrives: the permanent entry for %s on %s may be old", n.in.Name, have.MAC, n.ip, n.link)
			return nil
		}
	}
	if last != nil && !last.Reply && where == view.HostName && strings.HasSuffix(last.Hook, "postrouting") {
		if stopped, err := w.judgeSource(last); stopped || err != nil {
			return err
		}
	}
	name := w.packetName(proto, last != nil && last.Reply)
	for _, r := range a.Refusals {
		if r.From.IsValid() && r.MTU == 0 {
			w.stop("", "%s refuses the %s: %s", r.From, name, r.Text)
			return nil
		}
	}
	switch {
	case lost != nil:
		after := ""
		if last != nil {
			after = fmt.Sprintf(" after the hook %s of %s", last.Hook, where)
		}
		w.stop("", "the kernel drops the %s%s: %s", w.packetName(proto, lost.reply), after, lost.cause)
	case last == nil:
		w.stop("", "the %s does not leave %s", name, w.found.Steps[0].Where)
	case strings.HasSuffix(last.Hook, "postrouting"):
		w.stop("", "the %s leaves %s by %s and is not seen any more", name, where, last.Out)
	case last.Hook == "input" && last.Reply:
		w.stop("", "the %s reaches %s, which does not accept it", name, where)
	case last.Hook == "input":
		w.stop("", "the %s arrives at %s, which does not answer", name, where)
	default:
		w.stop("", "%s loses the %s after the hook %s: by routing (rp_filter, forwarding), iptables-legacy or a full queue", where, name, last.Hook)
	}
	return nil
}
