// Package path follows a packet from one end to another as the kernel would, and says what stops it. It asks questions of the kernel;
// only a probe sends something.
package path

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
)

// Path is the output of `cnibox path --json`.
type Path struct {
	From  netip.Addr `json:"from"`
	To    netip.Addr `json:"to"`
	Steps []Step     `json:"steps"`
	// Stopped is the reason why the packet does not arrive, Fix what mends it, and See what shows more if no Fix is known.
	Stopped string `json:"stopped,omitempty"`
	Fix     string `json:"fix,omitempty"`
	See     string `json:"see,omitempty"`
}

// Step is what a packet meets at one place: the host or a container.
type Step struct {
	Where string `json:"where"`
	What  string `json:"what"`
	Text  string `json:"text"`
}

// end is an end of a path: a namespace with addresses, or an address elsewhere.
type end struct {
	name string
	// in is what the kernel says about a container. It is nil for the host and for an address elsewhere.
	in        *view.Namespace
	addresses []netip.Addr
	elsewhere bool
}

// ns returns the namespace from which the end sends packets, or nil for the host's.
func (e *end) ns() *netops.Namespace {
	if e.in == nil {
		return nil
	}
	return e.in.Opened()
}

// address returns the end's first address of a family. It is invalid if there is none.
func (e *end) address(v6 bool) netip.Addr {
	for _, a := range e.addresses {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// Request is what Follow is asked for.
type Request struct {
	// From is a container's ID or the beginning of one, a pod, an address, a namespace's path, or "host". To is one of these, or an
	// address with a port. With DNS it can be "".
	From, To string
	// In is a link of the host on which the packet of another node's From arrives, or "".
	In string
	// IsUDP means that the port is one of UDP, and Forgets that its stale connections are deleted.
	IsUDP, Forgets bool
	// Probe sends packets. DNS is a name that To, a server, is asked for, or "".
	Probe bool
	DNS   string
	Table roles.Table
	// Networks returns the networks in the directories of the runtimes.
	Networks func() ([]*doctor.Network, error)
	// Denied returns the verdict of network policies that denies a connection, or nil. links are the host's.
	Denied func(links []netops.LinkInfo, f netpolicy.Flow) (*netpolicy.Verdict, error)
	// Node returns another node on which the path can go on, by its address, or nil. Nil if there are none.
	Node func(netip.Addr) (*Node, error)
}

// Node is another node of the same machine.
type Node struct {
	Name string
	// Netns is the path of its network namespace.
	Netns string
	Pods  []Pod
	// Run runs a verb there, and returns its output.
	Run func(args ...string) ([]byte, error)
}

// Pod is a container of a Node.
type Pod struct {
	Name, Netns string
	Address     netip.Addr
}

// Follow returns the path between two ends. It asks known for each fact, so h is not read if known has all of them, and no packets are sent.
func Follow(ctx context.Context, h *roles.Host, known *view.Host, r Request) (*Path, error) {
	if known.IsRecorded() && (r.Probe || r.DNS != "" || r.Forgets) {
		return nil, errors.New("a recorded node receives no packets and changes nothing")
	}
	w := &walker{Request: r, ctx: ctx, node: h, host: known, net: h.Net}
	w.IsUDP = w.IsUDP || r.DNS != ""
	w.forgetting = "cnibox path --udp --forget " + r.From
	if r.In != "" {
		w.forgetting = "cnibox path --udp --forget --in " + r.In + " " + r.From
	}
	return w.follow(r.From, r.To)
}

func (w *walker) follow(from, to string) (*Path, error) {
	state, err := w.inventory()
	if err != nil {
		return nil, err
	}
	w.attachments = state.Attachments
	_, err = doctor.ReadOverlay(w.host, w.node)
	w.managed = err == nil
	w.links, err = w.host.Links()
	if err != nil {
		return nil, err
	}
	w.records = advice.New(state.Dump, w.caches(), w.links)
	source, err := w.end(from)
	if err != nil {
		return nil, err
	}
	switch {
	case source.elsewhere && w.In == "":
		return nil, advice.Usagef("cnibox state", "FROM %q is neither a container of this node nor %q", from, view.HostName)
	case !source.elsewhere && w.In != "":
		return nil, advice.Usagef("cnibox help path", "--in %s: want an address elsewhere as FROM, not %q", w.In, from)
	}
	if to == "" {
		if to, err = w.nameServer(source); err != nil {
			return nil, err
		}
	}
	name, port, err := SplitPort(to)
	if err != nil {
		return nil, err
	}
	if w.DNS != "" {
		port = cmp.Or(port, dnsPort)
	}
	target, err := w.end(name)
	if err != nil {
		return nil, err
	}
	for _, v6 := range []bool{false, true} {
		w.found.From, w.found.To = source.address(v6), target.address(v6)
		if source.in == nil && !source.elsewhere { // the kernel chooses one of the host's
			w.found.From = netip.Addr{}
		}
		if w.found.To.IsValid() && (w.found.From.IsValid() || source.in == nil) {
			w.port = port
			to := netip.AddrPortFrom(w.found.To, port) // the walk may change it
			if w.In == "" {
				w.walk(source)
			} else {
				w.enter(w.hostLink(w.In), "", w.found.To)
			}
			w.judgePolicies()
			if w.found.Stopped == "" && w.err == nil && w.hops > 0 { // the host routes the answers too
				w.answers(w.found.From)
			}
			if w.DNS != "" && w.err == nil {
				w.err = w.ask(source, to)
			}
			if w.Probe && w.err == nil {
				w.err = w.probe(source, to)
			}
			return &w.found, w.err
		}
	}
	return nil, fmt.Errorf("%s and %s have no addresses of the same family", from, to)
}

// judgePolicies stops the packet that network policies deny. The walk has translated its destination.
func (w *walker) judgePolicies() {
	if w.err != nil || w.found.Stopped != "" || !w.found.From.IsValid() || w.found.From == w.found.To {
		return
	}
	f := netpolicy.Flow{Client: w.found.From, Server: w.found.To, Protocol: "ICMP"}
	if w.port != 0 {
		f.Protocol, f.Port = strings.ToUpper(w.protocol()), w.port
	}
	v, err := w.denied(f)
	switch {
	case err != nil:
		w.step(view.HostName, "policy", "not known: %v", err)
	case v != nil:
		w.deniedBy = v
		w.step(view.HostName, "policy", "what would change it: %s; 'cnibox policy explain --protocol %s %s %s' shows the rules", v.Change, strings.ToLower(f.Protocol), f.Client, f.Target())
		w.stop("", "network policies deny it: %s", v)
	}
}

// SplitPort returns the end and the port of TO[:PORT].
func SplitPort(to string) (end string, port uint16, err error) {
	if _, err := netip.ParseAddr(to); err == nil {
		return to, 0, nil
	}
	if at, err := netip.ParseAddrPort(to); err == nil {
		return at.Addr().String(), at.Port(), nil
	}
	end, digits, ok := strings.Cut(to, ":")
	if !ok {
		return to, 0, nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 {
		return "", 0, advice.Usagef("cnibox help path", "TO %q: want a port from 1 to 65535 after the colon", to)
	}
	return end, uint16(n), nil
}

// end finds the end that an argument names.
func (w *walker) end(name string) (*end, error) {
	if name == view.HostName {
		return &end{name: view.HostName, addresses: view.Reachable(w.links)}, nil
	}
	addr, err := netip.ParseAddr(name)
	isAddr := err == nil
	if isAddr {
		if a := w.attachmentWith(addr); a != nil {
			e, err := w.container(a)
			if e != nil {
				e.addresses = []netip.Addr{addr}
			}
			return e, err
		}
		return &end{name: name, addresses: []netip.Addr{addr}, elsewhere: true}, nil
	}
	if filepath.IsAbs(name) {
		in, err := w.host.Open(name, name)
		if err != nil {
			return nil, err
		}
		if host, err := w.isHost(in, name); host || err != nil {
			return &end{name: view.HostName, addresses: view.Reachable(w.links)}, err
		}
		links, err := in.Links()
		return &end{name: name, in: in, addresses: view.Reachable(links)}, err
	}
	state := inventory.Inventory{Attachments: append([]inventory.Attachment{}, w.attachments...)}
	if err := state.OnlyContainer(name); err != nil {
		return nil, advice.With(err, "cnibox state")
	}
	return w.container(&state.Attachments[0])
}

// container opens the container of an attachment as an end.
func (w *walker) container(a *inventory.Attachment) (*end, error) {
	in, err := w.host.Open(a.Title(), a.Netns)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", a.ContainerID, err)
	}
	w.ends = append(w.ends, a.ContainerID)
	e := &end{name: a.Title(), in: in}
	for i := range w.attachments {
		if one := &w.attachments[i]; one.ContainerID == a.ContainerID {
			for _, p := range one.Addresses {
				e.addresses = append(e.addresses, p.Addr())
			}
		}
	}
	return e, nil
}

// attachmentWith returns the attachment that has an address, or nil. Of several it is that of an end of the path.
func (w *walker) attachmentWith(addr netip.Addr) (found *inventory.Attachment) {
	for i := range w.attachments {
		a := &w.attachments[i]
		isEnd := slices.Contains(w.ends, a.ContainerID)
		if a.Has(addr) && (found == nil || isEnd && !slices.Contains(w.ends, found.ContainerID)) {
			found = a
		}
	}
	return found
}

// isNotExist reports whether something that a packet needs is absent.
func isNotExist(err error) bool { return errors.Is(err, netops.ErrNotExist) }
