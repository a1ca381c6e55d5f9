package topo

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// Read reads the host's devices and the node's attachments. problems are what is wrong with an attachment.
func Read(ctx context.Context, h *roles.Host, host *view.Host, problems map[store.Key][]string) (*Topology, error) {
	state, err := inventory.Read(ctx, h)
	if err == nil {
		err = state.AddFailures(h)
	}
	if err != nil {
		return nil, err
	}
	links, err := host.Links()
	if err != nil {
		return nil, err
	}
	counters, err := host.Counters()
	if err != nil {
		return nil, err
	}
	t := &Topology{Devices: []Device{}, Attachments: []Attachment{}}
	t.Node, err = os.Hostname()
	if err != nil {
		return nil, err
	}
	masqueraded := masqueradedByAgent(h)
	ends := map[string]bool{}
	for i := range state.Attachments {
		a := &state.Attachments[i]
		one := Attachment{
			Container: a.ContainerID, Pod: a.Pod, Network: a.Network, Netns: a.Netns, IfName: a.IfName, Addresses: a.Addresses, MAC: a.MAC,
			HostLink: a.HostLink, Ports: a.Ports, Problems: problems[a.Key()],
		}
		one.Masquerade = a.IsMasqueraded || slices.ContainsFunc(a.Addresses, masqueraded)
		one.EgressAddresses, err = egressAddresses(host, a.Made)
		if err != nil {
			return nil, err
		}
		if a.Error != "" {
			one.Problems = append(one.Problems, a.Error)
		}
		if !a.Alive {
			one.Problems = append(one.Problems, "the container has ended, and its runtime did not detach it: cnibox state reap")
		}
		if l, err := host.Link(a.HostLink); err == nil {
			ends[l.Name] = true
			one.Device, one.Traffic = l.Master, traffic(counters[l.Index])
		} else if a.HostLink == "" && a.Alive {
			if lower, _ := host.LinkAt(lowerIndex(ctx, h, a)); lower != nil { // the links are known
				one.Device = lower.Name
			}
		}
		t.Attachments = append(t.Attachments, one)
	}
	if err := t.addDevices(host, links, counters, ends); err != nil {
		return nil, err
	}
	sorting.Func(t.Attachments, func(a, b Attachment) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), strings.Compare(a.Pod, b.Pod), strings.Compare(a.Container, b.Container), strings.Compare(a.IfName, b.IfName))
	})
	return t, nil
}

// addDevices adds the links that are not ends of attachments.
func (t *Topology) addDevices(host *view.Host, links []netops.LinkInfo, counters map[int]netops.Counters, ends map[string]bool) error {
	tunnels, err := host.Tunnels()
	if err != nil {
		return err
	}
	uplink, err := host.Uplink()
	if err != nil {
		return err
	}
	for i := range links {
		if l := &links[i]; l.Name != "lo" && !ends[l.Name] {
			t.Devices = append(t.Devices, device(l, l.Name == uplink, tunnels, counters[l.Index]))
		}
	}
	return nil
}

func device(l *netops.LinkInfo, isUplink bool, tunnels []tunnel.Device, c netops.Counters) Device {
	d := Device{
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
func egressAddresses(host *view.Host, made []netops.Change) (all []netip.Addr, err error) {
	for _, c := range made {
		e, is := c.Do.Object.(*netops.Element)
		if _, isEgress := netops.EgressOf(c.Do.Object); !is || !isEgress {
			continue
		}
		from, err := netip.ParseAddr(e.Key[1])
		if err != nil {
			return nil, fmt.Errorf("read the recorded change %s: %w", e, err)
		}
		a, err := host.EgressAddress(e.Key[0], from, check.Elsewhere(from.Is6()))
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
func lowerIndex(ctx context.Context, h *roles.Host, a *inventory.Attachment) int {
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

func traffic(c netops.Counters) Traffic {
	return Traffic{
		ReceivedBytes: c.ReceivedBytes, SentBytes: c.SentBytes, ReceivedPackets: c.ReceivedPackets, SentPackets: c.SentPackets, ReceivedDropped: c.ReceivedDropped, SentDropped: c.SentDropped,
		ErroneousPackets: c.ReceiveErrors + c.SendErrors,
	}
}
