package netops

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// HostLink is a network interface with the properties that the choice of an underlay
// needs.
type HostLink struct {
	Name  string
	Index int
	// Kind is the kernel's link kind. It is "" for physical interfaces and loopback.
	Kind  string
	Alias string
	MAC   string
	MTU   int
	// Master is the index of the bridge or other link that the link is a port of, or 0.
	Master int
	// Up is the administrative state (IFF_UP). OperUp reports whether the link can
	// carry traffic (IFF_RUNNING).
	Up, OperUp, Loopback bool
	Addresses            []HostAddr
	// Default4 and Default6 report whether the link has a default route. Metric4 and
	// Metric6 are the lowest metrics of these routes.
	Default4, Default6 bool
	Metric4, Metric6   int
}

// HostAddr is an IP address of a HostLink.
type HostAddr struct {
	Prefix netip.Prefix
	// Global reports whether the address has global scope. Other addresses are valid
	// only on the link or on the host.
	Global bool
	// Permanent reports whether the address has no lifetime limit.
	Permanent bool
	// Deprecated, Temporary (RFC 8981) and Tentative apply to IPv6 addresses.
	Deprecated, Temporary, Tentative bool
}

// HostLinks reads the host's links with their addresses and their default routes in the
// main table.
func (n *Net) HostLinks(ctx context.Context) ([]HostLink, error) {
	c, links, addrs, err := n.linksIn(ctx, nil)
	if err != nil {
		return nil, err
	}
	routes, err := c.Routes(ctx, 0, unix.RT_TABLE_MAIN)
	if err != nil {
		return nil, err
	}
	all, byIndex := make([]HostLink, len(links)), make(map[int]*HostLink, len(links))
	for i, l := range links {
		all[i] = HostLink{
			Name: l.Name, Index: l.Index, Kind: l.Kind, Alias: l.Alias, MAC: l.MAC.String(), MTU: l.MTU, Master: l.Master,
			Up: l.IsUp(), OperUp: l.Flags&unix.IFF_RUNNING != 0, Loopback: l.Flags&unix.IFF_LOOPBACK != 0,
		}
		byIndex[l.Index] = &all[i]
	}
	for _, a := range addrs {
		if l := byIndex[a.Link]; l != nil {
			l.Addresses = append(l.Addresses, newHostAddr(&a))
		}
	}
	for _, r := range routes {
		if l := byIndex[r.Link]; l != nil && r.Dst.Bits() == 0 {
			l.addDefault(&r)
		}
	}
	return all, nil
}

func newHostAddr(a *rtnl.Addr) HostAddr {
	return HostAddr{
		Prefix: a.Prefix, Global: a.Scope == unix.RT_SCOPE_UNIVERSE,
		Permanent:  a.Flags&unix.IFA_F_PERMANENT != 0,
		Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
		Temporary:  a.Prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0,
		Tentative:  a.Flags&unix.IFA_F_TENTATIVE != 0,
	}
}

func (l *HostLink) addDefault(r *rtnl.Route) {
	if r.Dst.Addr().Is4() {
		if !l.Default4 || r.Priority < l.Metric4 {
			l.Default4, l.Metric4 = true, r.Priority
		}
		return
	}
	if !l.Default6 || r.Priority < l.Metric6 {
		l.Default6, l.Metric6 = true, r.Priority
	}
}

// Counters are what a link has counted since it was made (struct rtnl_link_stats64).
type Counters struct {
	ReceivedPackets, SentPackets, ReceivedBytes, SentBytes  uint64
	ReceiveErrors, SendErrors, ReceivedDropped, SentDropped uint64
}

// sizeofStatsHeader is the size of struct if_stats_msg of linux/if_link.h.
const sizeofStatsHeader = 12

// Counters reads the counters of the host's links, by index.
func (n *Net) Counters(ctx context.Context) (map[int]Counters, error) {
	c, err := n.host.socket()
	if err != nil {
		return nil, err
	}
	const filter = 1 << (unix.IFLA_STATS_LINK_64 - 1)
	body := binary.NativeEndian.AppendUint32(make([]byte, sizeofStatsHeader-4), filter)
	all := map[int]Counters{}
	err = c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETSTATS, Body: body}, func() { clear(all) }, func(_ uint16, data []byte) error {
		if len(data) < sizeofStatsHeader {
			return fmt.Errorf("statistics of %d bytes: %w", len(data), unix.EBADMSG)
		}
		v, err := nlconn.Find(data[sizeofStatsHeader:], unix.IFLA_STATS_LINK_64)
		if err != nil || len(v) < 8*8 {
			return err
		}
		at := func(i int) uint64 { return nlconn.Long(v[8*i:]) }
		all[int(int32(binary.NativeEndian.Uint32(data[4:])))] = Counters{at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)}
		return nil
	})
	return all, nlconn.Explain(err, "read the counters of links")
}
