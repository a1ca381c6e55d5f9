package netops

import (
	"context"

	"golang.org/x/sys/unix"
)

// HostLinks reads the host's links, with their addresses and whether default
// routes of the main table lead over them.
func (n *Net) HostLinks(ctx context.Context) ([]HostLink, error) {
	c, err := n.host.socket()
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
	routes, err := c.routes(ctx, 0, unix.RT_TABLE_MAIN)
	if err != nil {
		return nil, err
	}
	all, byIndex := make([]HostLink, len(links)), make(map[int]*HostLink, len(links))
	for i, l := range links {
		all[i] = HostLink{
			Name: l.name, Index: l.index, Kind: l.kind, MAC: l.mac.String(), MTU: l.mtu,
			Up: l.isUp(), OperUp: l.flags&unix.IFF_RUNNING != 0, Loopback: l.flags&unix.IFF_LOOPBACK != 0,
		}
		byIndex[l.index] = &all[i]
	}
	for _, a := range addrs {
		if l := byIndex[a.link]; l != nil {
			l.Addresses = append(l.Addresses, a.host())
		}
	}
	for _, r := range routes {
		if l := byIndex[r.link]; l != nil && r.dst.Bits() == 0 {
			l.addDefault(&r)
		}
	}
	return all, nil
}

func (a *addrState) host() HostAddr {
	return HostAddr{
		Prefix: a.prefix, Global: a.scope == unix.RT_SCOPE_UNIVERSE,
		Permanent:  a.flags&unix.IFA_F_PERMANENT != 0,
		Deprecated: a.flags&unix.IFA_F_DEPRECATED != 0,
		Temporary:  a.prefix.Addr().Is6() && a.flags&unix.IFA_F_TEMPORARY != 0,
		Tentative:  a.flags&unix.IFA_F_TENTATIVE != 0,
	}
}

func (l *HostLink) addDefault(r *routeState) {
	if r.dst.Addr().Is4() {
		if !l.Default4 || r.priority < l.Metric4 {
			l.Default4, l.Metric4 = true, r.priority
		}
		return
	}
	if !l.Default6 || r.priority < l.Metric6 {
		l.Default6, l.Metric6 = true, r.priority
	}
}
