package netops

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// HostLink is a network interface with what the choice of an underlay needs.
type HostLink struct {
	Name  string
	Index int
	// Kind is "" for physical ones and loopback.
	Kind string
	MAC  string
	MTU  int
	// Up is what was asked for; OperUp is whether it can carry traffic.
	Up, OperUp, Loopback bool
	Addresses            []HostAddr
	// Default4 and Default6 tell whether a default route leads over the link,
	// Metric4 and Metric6 the lowest of its metrics.
	Default4, Default6 bool
	Metric4, Metric6   int
}

// HostAddr is an address of a HostLink.
type HostAddr struct {
	Prefix netip.Prefix
	// Global is the scope; others are of the link or the host only.
	Global bool
	// Permanent addresses were set by hand; others have a lifetime.
	Permanent bool
	// Deprecated, Temporary (RFC 8981) and Tentative are IPv6's.
	Deprecated, Temporary, Tentative bool
}

// HostLinks reads the host's links, with their addresses and whether default
// routes of the main table lead over them.
func (n *Net) HostLinks(ctx context.Context) ([]HostLink, error) {
	c, err := n.host.socket()
	if err != nil {
		return nil, err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	addrs, err := c.Addresses(ctx, 0)
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
			Name: l.Name, Index: l.Index, Kind: l.Kind, MAC: l.MAC.String(), MTU: l.MTU,
			Up: l.IsUp(), OperUp: l.Flags&unix.IFF_RUNNING != 0, Loopback: l.Flags&unix.IFF_LOOPBACK != 0,
		}
		byIndex[l.Index] = &all[i]
	}
	for _, a := range addrs {
		if l := byIndex[a.Link]; l != nil {
			l.Addresses = append(l.Addresses, hostAddr(&a))
		}
	}
	for _, r := range routes {
		if l := byIndex[r.Link]; l != nil && r.Dst.Bits() == 0 {
			l.addDefault(&r)
		}
	}
	return all, nil
}

func hostAddr(a *rtnl.Addr) HostAddr {
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
