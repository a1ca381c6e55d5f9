package azurevnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// master is the node's interface on the cloud's network.
type master struct {
	Name  string
	MAC   string
	MTU   int
	Index int
}

// errNoMaster means that no interface of the node matches the address.
var errNoMaster = errors.New("no interface of the node matches")

// findMaster reads the master: the configured interface, else the interface
// that the cloud reports for the address, else the interface with the address's
// subnet.
func (r *role) findMaster(ctx context.Context, h *roles.Host, in *attach.Input) (master, error) {
	if r.conf.Master != "" {
		l, err := h.Net.Link(ctx, nil, r.conf.Master)
		if err != nil {
			return master{}, fmt.Errorf("master: %w", err)
		}
		return masterOf(l), nil
	}
	macs, err := attachment.CloudNICs(ctx, h, in.Key)
	if err != nil {
		return master{}, err
	}
	if m, ok, err := r.uplink(ctx, h, macs); ok || err != nil {
		return m, err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return master{}, err
	}
	nics := attachment.NICs(links)
	for _, mac := range macs {
		if l, ok := nics[mac]; ok {
			return masterOf(l), nil
		}
	}
	if in.IPAM == nil {
		return master{}, errNoMaster
	}
	ips, err := attach.Addresses(in.IPAM)
	if err != nil {
		return master{}, err
	}
	for _, ip := range ips {
		if l, ok := bySubnet(links, ip.Address.Masked()); ok {
			return masterOf(l), nil
		}
	}
	return master{}, fmt.Errorf("%w %v: none has an address of the same subnet, or the MAC address that the cloud reports for it: set \"master\"", errNoMaster, attach.Prefixes(ips))
}

// uplink is the interface that the configured bridge replaces, unless the cloud
// reports for the addresses a NIC with another MAC. It reads two links only,
// however many interfaces the node has.
func (r *role) uplink(ctx context.Context, h *roles.Host, macs []string) (m master, ok bool, err error) {
	if !r.conf.bridged() || r.conf.Bridge == "" {
		return m, false, nil
	}
	l, err := h.Net.Link(ctx, nil, r.conf.Bridge)
	if errors.Is(err, netops.ErrNotExist) {
		return m, false, nil
	}
	otherNIC := func(mac string) bool { return roles.UnicastMAC(mac) != "" && mac != l.MAC }
	if err != nil || l.Uplink == "" || slices.ContainsFunc(macs, otherNIC) {
		return m, false, err
	}
	if _, err := h.Net.Link(ctx, nil, l.Uplink); err != nil {
		if errors.Is(err, netops.ErrNotExist) { // the interface was renamed
			err = nil
		}
		return m, false, err
	}
	return master{Name: l.Uplink, MAC: l.MAC, MTU: l.MTU}, true, nil
}

// plannedMaster is the master for a plan of a node where none is found: eth0.
func plannedMaster(ctx context.Context, h *roles.Host) (master, error) {
	l, err := h.Net.Link(ctx, nil, "eth0")
	if err != nil {
		return master{}, fmt.Errorf("%w: %w: set \"master\"", errNoMaster, err)
	}
	return masterOf(l), nil
}

func masterOf(l netops.LinkInfo) master {
	return master{Name: l.Name, MAC: l.MAC, MTU: l.MTU, Index: l.Index}
}

// bySubnet is the node's interface that has an address of a subnet. If a bridge
// has that address, it is the interface that the bridge replaces.
func bySubnet(links []netops.LinkInfo, subnet netip.Prefix) (netops.LinkInfo, bool) {
	within := func(p netip.Prefix) bool { return p.Masked() == subnet }
	i := slices.IndexFunc(links, func(l netops.LinkInfo) bool { return slices.ContainsFunc(l.Addresses, within) })
	if i >= 0 && links[i].Uplink != "" {
		bridge := links[i]
		renamed := func(l netops.LinkInfo) bool { return l.Master == bridge.Name && l.MAC == bridge.MAC }
		if i = slices.IndexFunc(links, func(l netops.LinkInfo) bool { return l.Name == bridge.Uplink }); i < 0 {
			i = slices.IndexFunc(links, renamed)
		}
	}
	if i < 0 {
		return netops.LinkInfo{}, false
	}
	return links[i], true
}
