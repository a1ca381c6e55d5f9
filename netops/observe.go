package netops

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// LinkInfo describes a network interface as the kernel reports it.
type LinkInfo struct {
	Name  string
	Index int
	// Kind is "" for physical devices and the loopback device.
	Kind string
	// MAC is in colon form, or "" without an address. A netkit pair in mode l3 has none.
	MAC string
	MTU int
	// Up is the administrative state. OperUp reports whether the link can
	// carry traffic (RFC 2863). Running (IFF_RUNNING) is also true for a device whose
	// state is never known, such as VXLAN.
	Up, OperUp, Running bool
	Alias               string
	Group               uint32
	// Master is the bridge or other link that the link is enslaved to.
	Master      string
	MasterIndex int
	// PeerIndex is the index of the other end of a pair or of the lower link, in the
	// namespace of that link. PeerElsewhere means that this is another one.
	PeerIndex     int
	PeerElsewhere bool
	// ParentName is the name of the lower link if it is in the same
	// namespace. Links of Kind "macvlan", "ipvlan", "vlan" and "vxlan" have one.
	ParentName string
	// Mode is the mode of a macvlan, ipvlan or netkit. VLANID is the ID of a vlan.
	// Both are as in the type Link.
	Mode    string
	VLANID  int
	Promisc bool
	// Table is the routing table of a VRF.
	Table int
	// VLANFiltering reports whether a bridge filters VLANs.
	VLANFiltering bool
	// Hairpin and Isolated are settings of a bridge port.
	Hairpin, Isolated bool
	// Blocked means that a bridge port passes no frames, in spite of its carrier. Starting means that it will soon, if the bridge has STP.
	Blocked, Starting bool
	// NoARP means that the kernel neither asks for MACs on the link nor answers.
	NoARP bool
	// STP means that a bridge decides by itself which of its ports pass frames.
	STP bool
	// Uplink is the interface whose addresses and routes a bridge has taken
	// over, or is about to (see Takeover). The port of the takeover's
	// detour has it too.
	Uplink string
	// Addresses is set by Links only.
	Addresses []netip.Prefix
}

// IsPairEnd reports whether the link is one end of a pair, such as a veth.
func (l *LinkInfo) IsPairEnd() bool { return rtnl.IsPairEnd(l.Kind) }

// observed returns the namespace to observe: ns, or the host's for nil.
func (n *Net) observed(ns *Namespace) *Namespace {
	if ns == nil {
		return n.host
	}
	return ns
}

// linkIn reads a link in ns, or in the host's namespace for a nil ns.
func (n *Net) linkIn(ctx context.Context, ns *Namespace, name string) (*rtnl.Conn, *rtnl.Link, error) {
	if err := rtnl.CheckName(name); err != nil {
		return nil, nil, err
	}
	c, err := n.observed(ns).socket()
	if err != nil {
		return nil, nil, err
	}
	l, err := c.Link(ctx, name)
	return c, l, err
}

// Link reads one link in ns, or in the host's namespace for a nil ns. The error
// wraps ErrNotExist if the link is absent. The result has no addresses.
func (n *Net) Link(ctx context.Context, ns *Namespace, name string) (LinkInfo, error) {
	c, l, err := n.linkIn(ctx, ns, name)
	if err != nil {
		return LinkInfo{}, err
	}
	info := newLinkInfo(l)
	if l.Master != 0 {
		master, err := c.LinkByIndex(ctx, l.Master)
		if err != nil {
			return LinkInfo{}, err
		}
		info.Master = master.Name
	}
	if l.HasParentHere() {
		parent, err := c.LinkByIndex(ctx, l.Peer)
		if err != nil {
			return LinkInfo{}, err
		}
		info.ParentName = parent.Name
	}
	return info, nil
}

// Links reads all links in ns, or in the host's namespace for a nil ns.
func (n *Net) Links(ctx context.Context, ns *Namespace) ([]LinkInfo, error) {
	_, links, addrs, err := n.linksIn(ctx, ns)
	if err != nil {
		return nil, err
	}
	names := linkNames(links)
	byLink := map[int][]netip.Prefix{}
	for _, a := range addrs {
		byLink[a.Link] = append(byLink[a.Link], a.Prefix)
	}
	all := make([]LinkInfo, len(links))
	for i, l := range links {
		all[i] = newLinkInfo(l)
		all[i].Master, all[i].Addresses = names[l.Master], byLink[l.Index]
		if l.HasParentHere() {
			all[i].ParentName = names[l.Peer]
		}
	}
	return all, nil
}

// linksIn reads all links in ns, or in the host's namespace for a nil ns, and their addresses.
func (n *Net) linksIn(ctx context.Context, ns *Namespace) (*rtnl.Conn, []*rtnl.Link, []rtnl.Addr, error) {
	c, err := n.observed(ns).socket()
	if err != nil {
		return nil, nil, nil, err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	addrs, err := c.Addresses(ctx, 0)
	return c, links, addrs, err
}

// linkNames returns the names of links by index.
func linkNames(links []*rtnl.Link) map[int]string {
	names := map[int]string{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	return names
}

// States of a port of linux/if_bridge.h.
const portListening, portLearning, portForwarding = 1, 2, 3

func newLinkInfo(l *rtnl.Link) LinkInfo {
	i := LinkInfo{
		Name: l.Name, Index: l.Index, Kind: l.Kind, MAC: l.MAC.String(), MTU: l.MTU,
		Up: l.IsUp(), OperUp: l.Oper == rtnl.OperUp, Running: l.Flags&unix.IFF_RUNNING != 0, Alias: l.Alias, Group: l.Group,
		MasterIndex: l.Master, PeerIndex: l.Peer, PeerElsewhere: l.PeerElsewhere, Promisc: l.IsPromisc(),
		Mode: l.Mode, VLANID: int(l.VLANID), Table: l.Table, VLANFiltering: l.VLANFiltering, STP: l.STP != 0, NoARP: l.Flags&unix.IFF_NOARP != 0,
	}
	if l.Kind == rtnl.KindNetkit && l.Mode == "l3" {
		i.MAC = "" // the kernel reports zeros
	}
	if ownLabel(l.Alias) == takeoverLabel {
		i.Uplink = aliasUplink(l.Alias)
	}
	if l.Port != nil {
		i.Hairpin, i.Isolated, i.Blocked = l.Port.Hairpin, l.Port.Isolated, l.PortState != portForwarding && i.Running
		i.Starting = i.Blocked && (l.PortState == portListening || l.PortState == portLearning)
	}
	return i
}

// Addresses reads the addresses of one link.
func (n *Net) Addresses(ctx context.Context, ns *Namespace, link string) ([]netip.Prefix, error) {
	c, l, err := n.linkIn(ctx, ns, link)
	if err != nil {
		return nil, err
	}
	have, err := c.Addresses(ctx, l.Index)
	all := make([]netip.Prefix, len(have))
	for i, a := range have {
		all[i] = a.Prefix
	}
	return all, err
}

// Routes reads the unicast routes of one table, or of all tables for 0, with the
// links' names. A multipath route becomes one route for each next hop. In is
// empty.
func (n *Net) Routes(ctx context.Context, ns *Namespace, table int) ([]Route, error) {
	c, err := n.observed(ns).socket()
	if err != nil {
		return nil, err
	}
	routes, err := c.Routes(ctx, 0, table)
	if err != nil {
		return nil, err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	names := linkNames(links)
	all := make([]Route, len(routes))
	for i, r := range routes {
		all[i] = *routeOf(&r, "", names[r.Link])
	}
	return all, nil
}

// DefaultRouteLink returns the link of the default route with the lowest metric,
// IPv4 before IPv6. The error wraps ErrNotExist if there is no default route.
func (n *Net) DefaultRouteLink(ctx context.Context, ns *Namespace) (string, error) {
	routes, err := n.Routes(ctx, ns, unix.RT_TABLE_MAIN)
	if err != nil {
		return "", err
	}
	routes = slices.DeleteFunc(routes, func(r Route) bool { return r.Dst.Bits() != 0 || r.Link == "" })
	if len(routes) == 0 {
		return "", fmt.Errorf("default route: %w", ErrNotExist)
	}
	best := slices.MinFunc(routes, func(a, b Route) int {
		return cmp.Or(
			cmp.Compare(a.Dst.Addr().BitLen(), b.Dst.Addr().BitLen()),
			cmp.Compare(a.Priority, b.Priority),
		)
	})
	return best.Link, nil
}

// Sysctl reads a setting below /proc/sys/net. The key is as in the type Sysctl.
// White space in the result is normalized.
func (n *Net) Sysctl(_ context.Context, ns *Namespace, key string) (string, error) {
	return n.observed(ns).sysctl(key)
}

// TunnelEntries are the entries of a VXLAN device that were not learnt.
type TunnelEntries struct {
	// Neighbours has the MACs of addresses in the pod networks of other nodes. Forwarding has
	// the nodes' addresses by these MACs.
	Neighbours map[netip.Addr]string
	Forwarding map[string]netip.Addr
}

// TunnelEntries reads the entries of a VXLAN device on the host.
func (n *Net) TunnelEntries(ctx context.Context, link string) (TunnelEntries, error) {
	t := TunnelEntries{map[netip.Addr]string{}, map[string]netip.Addr{}}
	c, l, err := n.linkIn(ctx, nil, link)
	if err != nil {
		return t, err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		all, err := c.StaticNeighs(ctx, l.Index, family)
		if err != nil {
			return t, nlconn.Explain(err, fmt.Sprintf("list entries of %q", link))
		}
		for _, e := range all {
			if family == unix.AF_BRIDGE {
				t.Forwarding[e.MAC.String()] = e.IP
			} else {
				t.Neighbours[e.IP] = e.MAC.String()
			}
		}
	}
	return t, nil
}

// Elements reads all elements of one of cnibox's nftables sets.
func (n *Net) Elements(ctx context.Context, set string) ([]*Element, error) {
	all, err := n.nft.List(ctx, set)
	elements := make([]*Element, len(all))
	for i, e := range all {
		elements[i] = (*Element)(e)
	}
	return elements, err
}

// HostEnd returns the host's end of the pair whose other end is link in ns.
// The error wraps ErrNotExist if link is absent, is not of a pair, or has its other
// end in a namespace other than the host's.
func (n *Net) HostEnd(ctx context.Context, ns *Namespace, link string) (LinkInfo, error) {
	_, own, err := n.linkIn(ctx, ns, link)
	if err != nil {
		return LinkInfo{}, err
	}
	if !rtnl.IsPairEnd(own.Kind) {
		return LinkInfo{}, fmt.Errorf("host's end of link %q, which is of kind %q and not of a pair: %w", link, own.Kind, ErrNotExist)
	}
	host, err := n.host.socket()
	if err != nil {
		return LinkInfo{}, err
	}
	// A link index is unique in one namespace only. Therefore check that the
	// host's link with that index has the link in ns as its own peer.
	have, err := host.LinkByIndex(ctx, own.Peer)
	if err != nil {
		return LinkInfo{}, fmt.Errorf("host's end of link %q: %w", link, err)
	}
	id, err := host.NamespaceID(ctx, int(ns.fd))
	if err != nil {
		return LinkInfo{}, nlconn.Explain(err, fmt.Sprintf("number of namespace %q", ns.path))
	}
	if have.Kind != own.Kind || have.Peer != own.Index || !have.PeerElsewhere || have.PeerNamespace != id {
		return LinkInfo{}, fmt.Errorf("host's end of link %q: %w in the host's namespace", link, ErrNotExist)
	}
	return newLinkInfo(have), nil
}
