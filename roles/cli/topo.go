package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/topo"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) topoCommand() *cli.Command {
	return &cli.Command{
		Name:  "topo",
		Usage: "draw the networks of this node",
		Description: `Draws the host's devices, the containers behind each, their addresses and counters, and
marks what "cnibox diff" finds, and what a failed call left. The page of --format html
needs no network.

examples:
  cnibox topo
  cnibox topo --format html > node.html
  cnibox topo --format dot | dot -Tpdf > node.pdf`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Value: "text", Usage: "text, dot, svg, html or json"},
		},
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			format := c.String("format")
			if c.Bool("json") {
				format = "json"
			}
			draw, known := map[string]func(*topo.Topology) string{
				"text": func(t *topo.Topology) string {
					s := p.style(c)
					return t.Text(func(text string) string { return s.paint(red, text) })
				},
				"dot": (*topo.Topology).DOT, "svg": (*topo.Topology).SVG, "html": (*topo.Topology).HTML, "json": nil,
			}[format]
			if !known {
				return usagef("cnibox help topo", "--format %q: want text, dot, svg, html or json", format)
			}
			t, err := p.readTopology(c.Context, h)
			if err == nil {
				_, _, err = policyTables(c.Context, h, t)
			}
			if err != nil {
				return err
			}
			if draw == nil {
				return writeJSON(p.Stdout, t)
			}
			if format == "text" && len(t.Attachments) == 0 {
				fmt.Fprintln(p.Stderr, "cnibox: topo: no container is attached by cnibox here; the nodes of a lab have pictures of their own: cnibox lab run NODE topo")
			}
			_, err = fmt.Fprint(p.Stdout, draw(t))
			return err
		}),
	}
}

// readTopology reads the host's devices and the node's attachments.
func (p *Process) readTopology(ctx context.Context, h *roles.Host) (*topo.Topology, error) {
	state, err := readState(ctx, h)
	if err != nil {
		return nil, err
	}
	problems, err := p.problems(ctx, h)
	if err != nil {
		return nil, err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, err
	}
	tunnels, err := tunnel.List(ctx, h.Net)
	if err != nil {
		return nil, err
	}
	counters, err := h.Net.Counters(ctx)
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	uplink, err := h.Net.DefaultRouteLink(ctx, nil)
	if err != nil && !errors.Is(err, netops.ErrNotExist) {
		return nil, err
	}
	if err := state.addFailures(h); err != nil {
		return nil, err
	}
	t := &topo.Topology{Node: name, Devices: []topo.Device{}, Attachments: []topo.Attachment{}}
	masqueraded := masqueradedByAgent(h)
	byName, byIndex, ends := map[string]*netops.LinkInfo{}, map[int]string{}, map[string]bool{}
	for i := range links {
		byName[links[i].Name], byIndex[links[i].Index] = &links[i], links[i].Name
	}
	for i := range state.Attachments {
		a := &state.Attachments[i]
		one := topo.Attachment{
			Container: a.ContainerID, Pod: printable(a.Pod), Network: a.Network, Netns: printable(a.Netns), IfName: a.IfName, Addresses: a.Addresses, MAC: a.MAC,
			HostLink: a.HostLink, Ports: a.Ports, Problems: problems[a.key()],
		}
		one.Masquerade = a.isMasqueraded || slices.ContainsFunc(a.Addresses, masqueraded)
		one.EgressAddresses, err = egressAddresses(ctx, h.Net, a.made)
		if err != nil {
			return nil, err
		}
		if a.Error != "" {
			one.Problems = append(one.Problems, a.Error)
		}
		if !a.Alive {
			one.Problems = append(one.Problems, "the container has ended, and its runtime did not detach it: cnibox state reap")
		}
		if l := byName[a.HostLink]; l != nil {
			ends[l.Name] = true
			one.Device, one.Traffic = l.Master, traffic(counters[l.Index])
		} else if a.HostLink == "" && a.Alive {
			one.Device = byIndex[lowerIndex(ctx, h, a)]
		}
		t.Attachments = append(t.Attachments, one)
	}
	for i := range links {
		if l := &links[i]; l.Name != "lo" && !ends[l.Name] {
			t.Devices = append(t.Devices, device(l, l.Name == uplink, tunnels, counters[l.Index]))
		}
	}
	sorting.Func(t.Attachments, func(a, b topo.Attachment) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), strings.Compare(a.Pod, b.Pod), strings.Compare(a.Container, b.Container), strings.Compare(a.IfName, b.IfName))
	})
	return t, nil
}

func device(l *netops.LinkInfo, isUplink bool, tunnels []tunnel.Device, c netops.Counters) topo.Device {
	d := topo.Device{
		Name: l.Name, Kind: l.Kind, Addresses: l.Addresses, MTU: l.MTU, Up: l.Up, Uplink: isUplink,
		Lower: cmp.Or(l.Master, l.ParentName), Traffic: traffic(c),
	}
	if i := slices.IndexFunc(tunnels, func(t tunnel.Device) bool { return t.Name == l.Name }); i >= 0 {
		d.IsTunnel = true
		for _, peer := range tunnels[i].Peers {
			d.Peers = append(d.Peers, peer.Addr())
		}
	}
	return d
}

// egressAddresses returns the addresses with which the packets of an attachment leave the node because of egressAddress. made are its
// recorded changes, and the kernel says what is left of them.
func egressAddresses(ctx context.Context, n *netops.Net, made []netops.Change) (all []netip.Addr, err error) {
	for _, c := range made {
		e, is := c.Do.Object.(*netops.Element)
		if _, isEgress := netops.EgressOf(c.Do.Object); !is || !isEgress {
			continue
		}
		from, err := netip.ParseAddr(e.Key[1])
		if err != nil {
			return nil, fmt.Errorf("read the recorded change %s: %w", e, err)
		}
		a, err := n.EgressAddress(ctx, e.Key[0], from, check.Elsewhere(from.Is6()))
		if err != nil {
			return nil, err
		}
		if a.IsValid() {
			all = append(all, a)
		}
	}
	return all, nil
}

// masqueradedByAgent returns a function that reports whether the agent masquerades the packets of an address.
func masqueradedByAgent(h *roles.Host) func(netip.Prefix) bool {
	o, err := store.ReadOverlay(h.Store.OverlayPath())
	if err != nil || !o.IPMasq {
		return func(netip.Prefix) bool { return false } // a node without the file has no overlay, and doctor reports a damaged one
	}
	return func(p netip.Prefix) bool {
		return o.IPv4 != nil && o.IPv4.Subnet.Contains(p.Addr()) || o.IPv6 != nil && o.IPv6.Subnet.Contains(p.Addr())
	}
}

// lowerIndex returns the index of the host's device below a container's interface, such as the parent of a
// macvlan, or 0. An interface that was deleted is among the problems.
func lowerIndex(ctx context.Context, h *roles.Host, a *attached) int {
	ns, err := h.Net.OpenNamespace(a.Netns)
	if err != nil {
		return 0
	}
	defer func() { _ = ns.Close() }() // it was only read
	l, err := h.Net.Link(ctx, ns, a.IfName)
	if err != nil {
		return 0
	}
	return l.PeerIndex
}

// problems returns what `cnibox diff` finds, by attachment.
func (p *Process) problems(ctx context.Context, h *roles.Host) (map[store.Key][]string, error) {
	all, err := p.auditAll(ctx, h, "")
	if err != nil {
		return nil, err
	}
	found := map[store.Key][]string{}
	for _, one := range all {
		for _, d := range one.found {
			found[one.Key] = append(found[one.Key], fmt.Sprintf("%s: want %s, have %s: %s", d.Object, d.Want, d.Have, d.Fix))
		}
	}
	return found, nil
}

func traffic(c netops.Counters) topo.Traffic {
	return topo.Traffic{
		ReceivedBytes: c.ReceivedBytes, SentBytes: c.SentBytes, ReceivedPackets: c.ReceivedPackets, SentPackets: c.SentPackets, ReceivedDropped: c.ReceivedDropped, SentDropped: c.SentDropped,
		ErroneousPackets: c.ReceiveErrors + c.SendErrors,
	}
}
