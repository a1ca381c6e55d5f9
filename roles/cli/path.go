package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/cli/lab"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// hostName is the name of this node's own namespace as an end of a path.
const hostName = "host"

func (p *Process) pathCommand() *cli.Command {
	return &cli.Command{
		Name:      "path",
		Usage:     "follow a packet from a container to an address, and say what stops it",
		ArgsUsage: "FROM TO[:PORT], or with --dns FROM",
		Description: `FROM is a container's ID or the beginning of one, a pod as NAMESPACE/NAME, a container's
address, a namespace's path, or "host". TO is one of these or any address; with PORT also
a published port of this node, or a service of kube-proxy (not with iptables-legacy). With
a port an IPv6 address is in brackets: [2001:db8::9]:80. The
kernel answers each question: routes in every namespace, neighbours, forwarding tables,
rules that drop by addresses or devices. Nothing is sent and nothing is changed. A chain of
another program that drops by its policy is mentioned.

--probe also sends packets for at most a second: an ARP request, ICMP echo requests, a
large one with DF, and a TCP SYN if a port is given, or with --udp an empty UDP datagram. It
reports the answers, every hook of nftables that the packets reach, and the rule that decides. For that time nftables tables
"cnibox_trace" without verdicts are in the namespaces of FROM, the node and TO. Rules of
iptables-legacy are not seen. If a packet is lost without a rule, the kernel's reason is
named where "cnibox drops" has reports.

--udp is for a port of UDP. --dns sends TO, a name server, one query and names its answer. Without
TO it asks the first server of FROM's resolv.conf.

A path through the overlay ends where the packet leaves for the other node. There
"cnibox path --in flannel.1 FROM TO" goes on. In a node of a lab this happens by itself.

examples:
  cnibox path default/web 10.244.2.7
  cnibox path --in flannel.1 10.244.0.5 default/db
  cnibox path --probe default/web default/db:5432
  cnibox path host 192.0.2.10:8080`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "probe", Usage: "send packets and trace them"},
			&cli.BoolFlag{Name: "udp", Usage: "the port is one of UDP"},
			&cli.BoolFlag{Name: "forget", Usage: "with --udp, delete tracked connections that lead packets past a service"},
			&cli.StringFlag{Name: "dns", Usage: "ask TO, a server, for the addresses of `NAME`"},
			&cli.StringFlag{Name: "in", Usage: "FROM is an address elsewhere, and its packet arrives on `LINK`"},
			&cli.StringFlag{Name: "lab", Value: lab.DefaultDir, Usage: "the directory of a lab"},
		}, tableFlags()...),
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			in, probe, to := c.String("in"), c.Bool("probe"), c.Args().Get(1)
			if n := c.Args().Len(); n != 2 && (n != 1 || c.String("dns") == "") {
				return usagef("cnibox help path", "want FROM and TO")
			}
			if in != "" && probe {
				return usagef("cnibox help path", "--in and --probe exclude each other: FROM sends the probe")
			}
			dns := c.String("dns")
			if dns != "" && (in != "" || probe) {
				return usagef("cnibox help path", "--dns excludes --in and --probe: it sends a query of its own")
			}
			w := &walker{ctx: c.Context, node: h, host: view.NewHost(c.Context, h.Net), table: p.Table, net: h.Net, isUDP: c.Bool("udp") || dns != "", dns: dns, forget: c.Bool("forget")}
			w.networks = func() ([]*doctor.Network, error) {
				runtimes, _, err := p.runtimes()
				return doctor.Choose(p.Table, runtimes), err
			}
			w.forgetting = "cnibox path --udp --forget " + c.Args().First()
			if in != "" {
				w.forgetting = "cnibox path --udp --forget --in " + in + " " + c.Args().First()
			}
			if p.Self != nil && in == "" {
				w.lab = &lab.Lab{Dir: c.String("lab"), Self: p.Self, Net: h.Net}
			}
			found, err := w.follow(h, c.Args().First(), to, in, probe)
			if err != nil {
				return err
			}
			err = p.output(c, found, func(s style) error { return p.writePath(found, s) })
			if err == nil && found.Stopped != "" {
				err = problem("the packet does not arrive")
			}
			return err
		}),
	}
}

// packetPath is the output of `cnibox path --json`.
type packetPath struct {
	From  netip.Addr `json:"from"`
	To    netip.Addr `json:"to"`
	Steps []pathStep `json:"steps"`
	// Stopped is the reason why the packet does not arrive, Fix what mends it, and See what shows more if no Fix is known.
	Stopped string `json:"stopped,omitempty"`
	Fix     string `json:"fix,omitempty"`
	See     string `json:"see,omitempty"`
}

// pathStep is what a packet meets at one place: the host or a container.
type pathStep struct {
	Where string `json:"where"`
	What  string `json:"what"`
	Text  string `json:"text"`
}

func (p *Process) writePath(found *packetPath, s style) error {
	t := table{head: []string{"WHERE", "WHAT", ""}}
	for _, step := range found.Steps {
		t.add(step.Where, step.What, step.Text)
	}
	if err := t.write(p.Stdout, s); err != nil {
		return err
	}
	if found.Stopped == "" {
		return nil
	}
	fmt.Fprintln(p.Stdout, s.paint(red, "stopped: "+printable(found.Stopped)))
	return p.writeNext("", found.Fix, found.See)
}

// pathEnd is an end of a path: a namespace with addresses, or an address elsewhere.
type pathEnd struct {
	name string
	// ns is nil for the host and for an address elsewhere. in is what the kernel says about it.
	ns        *netops.Namespace
	in        *view.Namespace
	addresses []netip.Addr
	elsewhere bool
}

// address returns the end's first address of a family. It is invalid if there is none.
func (e *pathEnd) address(v6 bool) netip.Addr {
	for _, a := range e.addresses {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// follow returns the path between two ends. With probe it also sends packets. With in
// the packet arrives on that link.
func (w *walker) follow(h *roles.Host, from, to, in string, probe bool) (*packetPath, error) {
	state, err := readState(w.ctx, h)
	if err != nil {
		return nil, err
	}
	w.attachments = state.Attachments
	_, err = store.ReadOverlay(h.Store.OverlayPath())
	w.managed = err == nil
	w.links, err = w.host.Links()
	if err != nil {
		return nil, err
	}
	w.records = advice.New(state.dump, recovery.ReadCaches(h, recovery.CacheDirs(h.Store.RunDir())), w.links)
	source, err := w.end(from)
	if err != nil {
		return nil, err
	}
	defer source.close()
	switch {
	case source.elsewhere && in == "":
		return nil, usagef("cnibox state", "FROM %q is neither a container of this node nor %q", from, hostName)
	case !source.elsewhere && in != "":
		return nil, usagef("cnibox help path", "--in %s: want an address elsewhere as FROM, not %q", in, from)
	}
	if to == "" {
		if to, err = w.nameServer(source); err != nil {
			return nil, err
		}
	}
	name, port, err := splitPort(to)
	if err != nil {
		return nil, err
	}
	if w.dns != "" {
		port = cmp.Or(port, dnsPort)
	}
	target, err := w.end(name)
	if err != nil {
		return nil, err
	}
	defer target.close()
	for _, v6 := range []bool{false, true} {
		w.found.From, w.found.To = source.address(v6), target.address(v6)
		if source.ns == nil && !source.elsewhere { // the kernel chooses one of the host's
			w.found.From = netip.Addr{}
		}
		if w.found.To.IsValid() && (w.found.From.IsValid() || source.ns == nil) {
			w.port = port
			to := netip.AddrPortFrom(w.found.To, port) // the walk may change it
			if in == "" {
				w.walk(source)
			} else {
				w.enter(w.hostLink(in), "", w.found.To)
			}
			w.judgePolicies(h)
			if w.found.Stopped == "" && w.err == nil && w.hops > 0 { // the host routes the answers too
				w.answers(w.found.From)
			}
			if w.dns != "" && w.err == nil {
				w.err = w.ask(source, to)
			}
			if probe && w.err == nil {
				w.err = w.probe(source, to)
			}
			return &w.found, w.err
		}
	}
	return nil, fmt.Errorf("%s and %s have no addresses of the same family", from, to)
}

// judgePolicies stops the packet that network policies deny. The walk has translated its destination.
func (w *walker) judgePolicies(h *roles.Host) {
	if w.err != nil || w.found.Stopped != "" || !w.found.From.IsValid() || w.found.From == w.found.To {
		return
	}
	view, err := readPolicies(w.ctx, h, w.links)
	if err != nil {
		w.step(hostName, "policy", "not known: %v", err)
		return
	}
	f := netpolicy.Flow{Client: w.found.From, Server: w.found.To, Protocol: "ICMP"}
	if w.port != 0 {
		f.Protocol, f.Port = strings.ToUpper(w.protocol()), w.port
	}
	if v := view.denial(f, true); v != nil {
		w.deniedBy = v
		w.step(hostName, "policy", "what would change it: %s; 'cnibox policy explain --protocol %s %s %s' shows the rules", v.Change, strings.ToLower(f.Protocol), f.Client, f.Target())
		w.stop("", "network policies deny it: %s", v)
	}
}

// splitPort returns the end and the port of TO[:PORT].
func splitPort(to string) (end string, port uint16, err error) {
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
		return "", 0, usagef("cnibox help path", "TO %q: want a port from 1 to 65535 after the colon", to)
	}
	return end, uint16(n), nil
}

// end finds the end that an argument names.
func (w *walker) end(name string) (*pathEnd, error) {
	if name == hostName {
		return &pathEnd{name: hostName, addresses: reachable(w.links)}, nil
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
		return &pathEnd{name: name, addresses: []netip.Addr{addr}, elsewhere: true}, nil
	}
	if filepath.IsAbs(name) {
		ns, err := w.net.OpenNamespace(name)
		if err != nil {
			return nil, err
		}
		if host, err := w.net.IsHost(ns); host || err != nil {
			return &pathEnd{name: hostName, addresses: reachable(w.links)}, errors.Join(err, ns.Close())
		}
		in := w.host.Container(ns, name, name)
		links, err := in.Links()
		return &pathEnd{name: name, ns: ns, in: in, addresses: reachable(links)}, err
	}
	state := nodeState{Attachments: append([]attached{}, w.attachments...)}
	if err := state.onlyContainer(name); err != nil {
		return nil, withHint(err, "cnibox state")
	}
	return w.container(&state.Attachments[0])
}

// reachable returns the addresses of links that other hosts can reach.
func reachable(links []netops.LinkInfo) (all []netip.Addr) {
	for _, l := range links {
		for _, p := range l.Addresses {
			if a := p.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				all = append(all, a)
			}
		}
	}
	return all
}

// container opens the container of an attachment as an end.
func (w *walker) container(a *attached) (*pathEnd, error) {
	ns, err := w.net.OpenNamespace(a.Netns)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", a.ContainerID, err)
	}
	w.ends = append(w.ends, a.ContainerID)
	e := &pathEnd{name: containerName(a), ns: ns, in: w.host.Container(ns, containerName(a), a.Netns)}
	for i := range w.attachments {
		if one := &w.attachments[i]; one.ContainerID == a.ContainerID {
			for _, p := range one.Addresses {
				e.addresses = append(e.addresses, p.Addr())
			}
		}
	}
	return e, nil
}

// containerName is the pod of an attachment, or the beginning of its container's ID.
func containerName(a *attached) string { return style{table: true}.name(a.Pod, a.ContainerID) }

func (e *pathEnd) close() {
	if e.ns != nil {
		_ = e.ns.Close() // it was only read
	}
}

// attachmentWith returns the attachment that has an address, or nil. Of several it is that of an end of the path.
func (w *walker) attachmentWith(addr netip.Addr) (found *attached) {
	for i := range w.attachments {
		a := &w.attachments[i]
		isEnd := slices.Contains(w.ends, a.ContainerID)
		if a.has(addr) && (found == nil || isEnd && !slices.Contains(w.ends, found.ContainerID)) {
			found = a
		}
	}
	return found
}

// has reports whether an attachment has an address.
func (a *attached) has(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
}

// isNotExist reports whether something that a packet needs is absent.
func isNotExist(err error) bool { return errors.Is(err, netops.ErrNotExist) }
