package netops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Packet is what the kernel needs to choose a packet's way.
type Packet struct {
	To netip.Addr
	// From may be invalid for a packet that this namespace sends.
	From netip.Addr
	// In is the link on which the packet arrives. It is "" for a packet that this
	// namespace sends. Out is the link by which it must leave, or "".
	In, Out string
	// Mark is the packet's mark, which rules of packet filters set.
	Mark uint32
}

// Way is where the kernel sends a packet.
type Way struct {
	// Local means that the packet is for this namespace. Refused means that the kernel drops it
	// because of its source address: by rp_filter (kernel: ip-sysctl), or because no packet may
	// have that source.
	Local, Refused bool
	// Link is the outgoing link. Via is the gateway; it is invalid if the destination is on
	// the link. From is the source address.
	Link      string
	Via, From netip.Addr
	// MTU and AdvMSS are those of the route, or 0.
	MTU, AdvMSS int
}

// Way asks the kernel for the way of a packet in ns, or in the host's namespace for a nil ns.
// The error wraps ErrNotExist if there is no route. It is a *RouteRefusal if a policy rule refuses the packet.
func (n *Net) Way(ctx context.Context, ns *Namespace, p Packet) (Way, error) {
	r, c, err := n.KernelRoute(ctx, ns, p)
	if c != nil && err != nil { // for a packet that arrives, EINVAL has several causes
		if refused, failed := n.refusal(ctx, c, p); refused != nil || failed != nil {
			return Way{}, cmp.Or(failed, error(refused))
		}
	}
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL) && p.In != "":
		return Way{Refused: true}, nil
	case err != nil:
		return Way{}, err
	case r.Kind == unix.RTN_LOCAL:
		return Way{Local: true, From: r.Src}, nil
	case r.Kind != unix.RTN_UNICAST:
		return Way{}, fmt.Errorf("route to %s: a route refuses it: %w", p.To, ErrNotExist)
	}
	l, err := c.LinkByIndex(ctx, r.Link)
	if err != nil {
		return Way{}, err
	}
	return Way{Link: l.Name, Via: r.Via, From: r.Src, MTU: r.MTU, AdvMSS: r.AdvMSS}, nil
}

// KernelRoute asks the kernel for the route of a packet, for Way and for package tunnel. It returns the connection of
// the namespace, too.
func (n *Net) KernelRoute(ctx context.Context, ns *Namespace, p Packet) (r rtnl.Route, c *rtnl.Conn, err error) {
	c, err = n.observed(ns).socket()
	if err != nil {
		return r, nil, err
	}
	var index [2]int
	for i, name := range []string{p.In, p.Out} {
		if name == "" {
			continue
		}
		l, err := c.Link(ctx, name)
		if err != nil {
			return r, nil, err
		}
		index[i] = l.Index
	}
	m := rtnl.RouteMessage(p.To, p.From, index[0], index[1])
	if p.Mark != 0 {
		m.Uint32(unix.RTA_MARK, p.Mark)
	}
	err = c.Ask(ctx, m, func(_ uint16, data []byte) (err error) {
		r, _, err = rtnl.ParseHops(data)
		return err
	})
	what := fmt.Sprintf("route to %s", p.To)
	isRefused := errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) && p.In == "" // by a route prohibit or blackhole
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || isRefused {
		return r, c, &noRoute{what, err}
	}
	return r, c, nlconn.Explain(err, what)
}

// noRoute is the error of the kernel for a packet that it does not route. It wraps ErrNotExist.
type noRoute struct {
	what  string
	cause error
}

// Error implements error.
func (e *noRoute) Error() string { return e.what + ": " + ErrNotExist.Error() }

// Unwrap returns ErrNotExist, and the kernel's error.
func (e *noRoute) Unwrap() []error { return []error{ErrNotExist, e.cause} }

// IsUnreachable reports whether the error of Way is for a route of the type unreachable. Without a route the kernel has another error.
func IsUnreachable(err error) bool { return errors.Is(err, unix.EHOSTUNREACH) }

// Neighbour is an entry of the ARP or neighbour table.
type Neighbour struct {
	MAC string
	// Failed means that nobody has answered the last requests. Asked means that requests are being sent. Permanent means that a program made
	// the entry.
	Failed, Asked, Permanent bool
}

// Neighbour reads the neighbour entry for an address on a link. Its MAC is "" if the kernel
// does not know one.
func (n *Net) Neighbour(ctx context.Context, ns *Namespace, link string, ip netip.Addr) (Neighbour, error) {
	c, l, err := n.linkIn(ctx, ns, link)
	if err != nil {
		return Neighbour{}, err
	}
	have, _, err := c.Neighbour(ctx, l.Index, ip)
	if err != nil || have.Link != l.Index {
		return Neighbour{}, nlconn.Explain(err, fmt.Sprintf("neighbour %s on %q", ip, link))
	}
	return Neighbour{MAC: have.MAC.String(), Failed: have.State&unix.NUD_FAILED != 0, Asked: have.State&unix.NUD_INCOMPLETE != 0, Permanent: have.State&unix.NUD_PERMANENT != 0}, nil
}

// Forwarded is where a bridge or a VXLAN device sends a frame.
type Forwarded struct {
	// Known is false if there is no entry for the MAC. A bridge then sends the frame to all ports.
	Known bool
	// Local means that the frame is for the bridge itself. Otherwise Port is the port of a
	// bridge, or Remote the address to which a VXLAN device sends.
	Local  bool
	Port   string
	Remote netip.Addr
}

// ForwardingEntry reads the entry for a MAC in the forwarding table of a host's bridge or VXLAN device.
func (n *Net) ForwardingEntry(ctx context.Context, link, mac string) (Forwarded, error) {
	c, l, err := n.linkIn(ctx, nil, link)
	if err != nil {
		return Forwarded{}, err
	}
	want, err := net.ParseMAC(mac)
	if err != nil {
		return Forwarded{}, fmt.Errorf("MAC %q: %w", mac, ErrInvalid)
	}
	isBridge := l.Kind == "bridge"
	if isBridge && slices.Equal(l.MAC, want) {
		return Forwarded{Known: true, Local: true}, nil
	}
	key := rtnl.Neigh{Family: unix.AF_BRIDGE, MAC: want}
	if !isBridge {
		key.Link, key.Flags = l.Index, unix.NTF_SELF
	}
	m := nlconn.Message{Kind: unix.RTM_GETNEIGH, Body: key.Append(nil)}
	if isBridge {
		m.Uint32(unix.NDA_MASTER, uint32(l.Index))
	}
	data, err := c.Query(ctx, m)
	if errors.Is(err, unix.ENOENT) {
		return Forwarded{}, nil
	}
	entry := rtnl.Neigh{}
	if err == nil {
		entry, err = rtnl.ParseNeigh(data)
	}
	if err != nil {
		return Forwarded{}, nlconn.Explain(err, fmt.Sprintf("forwarding entry %s on %q", mac, link))
	}
	if !isBridge {
		return Forwarded{Known: true, Remote: entry.IP}, nil
	}
	port, err := c.LinkByIndex(ctx, entry.Link)
	if err != nil {
		return Forwarded{}, err
	}
	return Forwarded{Known: true, Local: entry.Link == l.Index || entry.State&unix.NUD_PERMANENT != 0 && slices.Equal(port.MAC, want), Port: port.Name}, nil
}

// BridgeEntry is an entry of a bridge's forwarding table that the bridge has not learnt.
type BridgeEntry struct {
	MAC string
	// Link is the index of the port, or of the bridge for its own.
	Link int
}

// Fix returns the command that deletes the entry, whose link has a name. isBridge is true for an entry of the bridge itself.
func (e *BridgeEntry) Fix(link string, isBridge bool) string {
	if isBridge {
		return "bridge fdb del " + e.MAC + " dev " + link + " self"
	}
	return "bridge fdb del " + e.MAC + " dev " + link + " master"
}

// BridgeEntries returns the entries of the host's bridges that they have not learnt.
func (n *Net) BridgeEntries(ctx context.Context) ([]BridgeEntry, error) {
	c, err := n.Rtnetlink()
	if err != nil {
		return nil, err
	}
	all, err := c.StaticForwarding(ctx)
	entries := make([]BridgeEntry, len(all))
	for i := range all {
		entries[i] = BridgeEntry{MAC: all[i].MAC.String(), Link: all[i].Link}
	}
	return entries, nlconn.Explain(err, "list forwarding entries")
}

// RouteLink returns the name of the link that the kernel's route to an address
// uses. A nil ns is the host's namespace. The error wraps ErrNotExist if there
// is no route.
func (n *Net) RouteLink(ctx context.Context, ns *Namespace, to netip.Addr) (string, error) {
	l, err := n.LinkToward(ctx, ns, to)
	return l.Name, err
}

// LinkToward is like RouteLink and returns the link's properties. Master,
// ParentName and Addresses are empty.
func (n *Net) LinkToward(ctx context.Context, ns *Namespace, to netip.Addr) (LinkInfo, error) {
	index, c, err := n.routeTo(ctx, ns, to)
	if err != nil {
		return LinkInfo{}, err
	}
	l, err := c.LinkByIndex(ctx, index)
	if err != nil {
		return LinkInfo{}, err
	}
	return newLinkInfo(l), nil
}

// CheckRoute is like RouteLink without the link. It returns nil if there is a
// route.
func (n *Net) CheckRoute(ctx context.Context, ns *Namespace, to netip.Addr) error {
	_, _, err := n.routeTo(ctx, ns, to)
	return err
}

// routeTo returns the index of the link that the route to an address uses, and
// the connection of the namespace.
func (n *Net) routeTo(ctx context.Context, ns *Namespace, to netip.Addr) (index int, c *rtnl.Conn, err error) {
	if err := checkAddr("destination", to); err != nil || !to.IsValid() {
		return 0, nil, errors.Join(err, fmt.Errorf("route to %q: %w", to, ErrInvalid))
	}
	r, c, err := n.KernelRoute(ctx, ns, Packet{To: to})
	if err == nil && (r.Kind != unix.RTN_UNICAST || r.Link == 0) {
		err = fmt.Errorf("route to %s: %w", to, ErrNotExist)
	}
	return r.Link, c, err
}
