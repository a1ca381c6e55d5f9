package netops

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// LinkInfo is a network interface as it is.
type LinkInfo struct {
	Name  string
	Index int
	// Kind is "" for physical ones and loopback.
	Kind string
	// MAC is in the usual colon form, "" without one.
	MAC string
	MTU int
	// Up is what was asked for; OperUp is whether it can carry traffic (RFC 2863).
	Up, OperUp bool
	Alias      string
	// Master is the bridge or other link that it is enslaved to.
	Master      string
	MasterIndex int
	// PeerIndex is the other end's or lower link's index, in whichever namespace that is.
	PeerIndex int
	// ParentName is the lower link's name, where that is in the same namespace:
	// the parent of one of Kind "macvlan", "ipvlan" or "vlan".
	ParentName string
	// Mode is a macvlan's or ipvlan's, and VLANID a vlan's, as in the type Link.
	Mode    string
	VLANID  int
	Promisc bool
	// Table is a VRF's routing table.
	Table int
	// VLANFiltering tells of a bridge that its ports' VLANs count.
	VLANFiltering bool
	// Hairpin and Isolated are a bridge port's.
	Hairpin, Isolated bool
	// Uplink is the interface that a bridge has the place of, or is about to (see
	// Takeover). A port that helps there tells it too.
	Uplink string
	// Addresses is filled by Links only.
	Addresses []netip.Prefix
}

// in is the namespace that an observation is of: the host's for nil.
func (n *Net) in(ns *Namespace) *Namespace {
	if ns == nil {
		return n.host
	}
	return ns
}

// Link reads one link, of the host's namespace for a nil ns. The error wraps
// ErrNotExist if there is none of that name. Addresses are left out.
func (n *Net) Link(ctx context.Context, ns *Namespace, name string) (LinkInfo, error) {
	if err := checkName(name); err != nil {
		return LinkInfo{}, err
	}
	c, err := n.in(ns).socket()
	if err != nil {
		return LinkInfo{}, err
	}
	l, err := c.link(ctx, name)
	if err != nil {
		return LinkInfo{}, err
	}
	info := l.info()
	if l.master != 0 {
		master, err := c.linkByIndex(ctx, l.master)
		if err != nil {
			return LinkInfo{}, err
		}
		info.Master = master.name
	}
	if l.hasParentHere() {
		parent, err := c.linkByIndex(ctx, l.peer)
		if err != nil {
			return LinkInfo{}, err
		}
		info.ParentName = parent.name
	}
	return info, nil
}

// Links reads all links of a namespace, of the host's for a nil ns.
func (n *Net) Links(ctx context.Context, ns *Namespace) ([]LinkInfo, error) {
	c, err := n.in(ns).socket()
	if err != nil {
		return nil, err
	}
	links, err := c.links(ctx)
	if err != nil {
		return nil, err
	}
	addrs, err := c.addresses(ctx, 0)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.index] = l.name
	}
	byLink := map[int][]netip.Prefix{}
	for _, a := range addrs {
		byLink[a.link] = append(byLink[a.link], a.prefix)
	}
	all := make([]LinkInfo, len(links))
	for i, l := range links {
		all[i] = l.info()
		all[i].Master, all[i].Addresses = names[l.master], byLink[l.index]
		if l.hasParentHere() {
			all[i].ParentName = names[l.peer]
		}
	}
	return all, nil
}

func (l *linkState) info() LinkInfo {
	i := LinkInfo{
		Name: l.name, Index: l.index, Kind: l.kind, MAC: l.mac.String(), MTU: l.mtu,
		Up: l.isUp(), OperUp: l.oper == operUp, Alias: l.alias,
		MasterIndex: l.master, PeerIndex: l.peer, Promisc: l.isPromisc(),
		Mode: l.mode, VLANID: l.vlanID, Table: l.table, VLANFiltering: l.vlanFiltering,
	}
	if ownLabel(l.alias) == takeoverLabel {
		i.Uplink = aliasUplink(l.alias)
	}
	if l.port != nil {
		i.Hairpin, i.Isolated = l.port.Hairpin, l.port.Isolated
	}
	return i
}

// Addresses reads the addresses of one link.
func (n *Net) Addresses(ctx context.Context, ns *Namespace, link string) ([]netip.Prefix, error) {
	if err := checkName(link); err != nil {
		return nil, err
	}
	c, err := n.in(ns).socket()
	if err != nil {
		return nil, err
	}
	l, err := c.link(ctx, link)
	if err != nil {
		return nil, err
	}
	have, err := c.addresses(ctx, l.index)
	all := make([]netip.Prefix, len(have))
	for i, a := range have {
		all[i] = a.prefix
	}
	return all, err
}

// Routes reads the unicast routes of one table, 0 for all, with the links'
// names. A multipath route is one for each hop. In is not filled.
func (n *Net) Routes(ctx context.Context, ns *Namespace, table int) ([]Route, error) {
	c, err := n.in(ns).socket()
	if err != nil {
		return nil, err
	}
	routes, err := c.routes(ctx, 0, table)
	if err != nil {
		return nil, err
	}
	links, err := c.links(ctx)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.index] = l.name
	}
	all := make([]Route, len(routes))
	for i, r := range routes {
		all[i] = *r.route("", names[r.link])
	}
	return all, nil
}

// DefaultRouteLink is the link of the default route with the lowest metric,
// IPv4 before IPv6. The error wraps ErrNotExist if there is none.
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

// Sysctl reads a setting below /proc/sys/net, named as in the type Sysctl,
// with white space made uniform.
func (n *Net) Sysctl(_ context.Context, ns *Namespace, key string) (string, error) {
	return n.in(ns).sysctl(key)
}

// Elements reads all elements of one of our nftables sets.
func (n *Net) Elements(ctx context.Context, set string) ([]*Element, error) {
	return n.nft.list(ctx, set)
}
