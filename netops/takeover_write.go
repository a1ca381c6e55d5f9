package netops

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// Of linux/if_addr.h and linux/rtnetlink.h. x/sys/unix lacks them, or
	// some of its versions do.
	ifaRTPriority = 9
	ifaProto      = 11
	rtaExpires    = 23
	// userTicks is the number of ticks a second in the kernel's messages
	// (USER_HZ).
	userTicks = 100
)

// moveTarget holds the properties of the link that receives addresses and routes.
type moveTarget struct {
	// link and index identify the link. from is the name of the previous
	// link.
	link  string
	index int
	from  string
	// expires keeps lifetimes.
	expires bool
	// advertMetric is the metric of routes that the kernel adds for router
	// advertisements, or 0 if it ignores them.
	advertMetric int
}

// add returns the request that adds the address to the link.
func (a *placedAddr) add(to moveTarget) nlconn.Message {
	header := slices.Clone(a.header)
	header[2] = 0 // flags are sent as an attribute
	binary.NativeEndian.PutUint32(header[4:], uint32(to.index))
	keep := uint32(unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN)
	flags := uint32(0)
	if a.header[0] == unix.AF_INET6 {
		keep |= unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_HOMEADDRESS
		flags = unix.IFA_F_NODAD
	}
	flags |= a.Flags & keep
	m := nlconn.Message{Kind: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: header}
	a.copyTo(&m.Body, unix.IFA_LOCAL, unix.IFA_ADDRESS, unix.IFA_BROADCAST, ifaRTPriority, ifaProto)
	m.Uint32(unix.IFA_FLAGS, flags)
	if label := a.label(to); label != "" {
		m.Text(unix.IFA_LABEL, label)
	}
	if life := a.value(unix.IFA_CACHEINFO); to.expires && a.header[0] == unix.AF_INET6 && len(life) >= 8 {
		info := append(slices.Clone(life[:8]), make([]byte, 8)...) // preferred, valid, and two times that are read-only
		m.Bytes(unix.IFA_CACHEINFO, info)
	}
	return m
}

// label returns the label of an IPv4 address: the link's name, or a label with
// that prefix.
func (a *placedAddr) label(to moveTarget) string {
	rest, ok := strings.CutPrefix(nlconn.Text(a.value(unix.IFA_LABEL)), to.from)
	if label := to.link + rest; ok && rest != "" && len(label) < unix.IFNAMSIZ {
		return label
	}
	return ""
}

// del returns the request that deletes the address from its present link.
func (a *placedAddr) del() nlconn.Message {
	m := nlconn.Message{Kind: unix.RTM_DELADDR, Body: slices.Clone(a.header)}
	a.copyTo(&m.Body, unix.IFA_LOCAL, unix.IFA_ADDRESS)
	return m
}

// add returns the request that adds the route to the link. The first route to a
// destination is prepended, and others are appended.
func (r *placedRoute) add(to moveTarget) nlconn.Message {
	if r.family == unix.AF_INET6 && r.Protocol == unix.RTPROT_RA && to.advertMetric != 0 && r.Priority == to.advertMetric {
		r = r.behind()
	}
	m := r.request(unix.RTM_NEWROUTE, to.index)
	m.Flags = unix.NLM_F_CREATE
	if !r.first || r.family == unix.AF_INET6 {
		m.Flags |= unix.NLM_F_APPEND
	}
	r.copyTo(&m.Body, unix.RTA_METRICS, unix.RTA_PREF, unix.RTA_ENCAP, unix.RTA_ENCAP_TYPE, unix.RTA_FLOW)
	if left := r.expires(); to.expires && left > 0 {
		m.Uint32(rtaExpires, left)
	}
	return m
}

// behind returns the route with its metric increased by one. A route with the
// kernel's metric that the kernel did not add would make it ignore the whole
// next advertisement (ndisc_router_discovery). With the higher metric the kernel
// can add its own route, and this route expires.
func (r *placedRoute) behind() *placedRoute {
	other := *r
	other.attrs = slices.DeleteFunc(slices.Clone(r.attrs), func(a rawAttr) bool { return a.kind == unix.RTA_PRIORITY })
	other.attrs = append(other.attrs, rawAttr{unix.RTA_PRIORITY, nl.Uint32Attr(uint32(r.Priority) + 1)})
	return &other
}

// del returns the request that deletes the route.
func (r *placedRoute) del() nlconn.Message { return r.request(unix.RTM_DELROUTE, r.Link) }

// request returns a request with the attributes that identify the route.
func (r *placedRoute) request(kind uint16, link int) nlconn.Message {
	m := nlconn.Message{Kind: kind, Body: slices.Clone(r.header)}
	binary.NativeEndian.PutUint32(m.Body[8:], binary.NativeEndian.Uint32(r.header[8:])&unix.RTNH_F_ONLINK)
	m.Uint32(unix.RTA_OIF, uint32(link))
	r.copyTo(&m.Body, unix.RTA_DST, unix.RTA_SRC, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_PREFSRC, unix.RTA_PRIORITY, unix.RTA_TABLE)
	return m
}

// expires returns the remaining lifetime of an IPv6 route in seconds, or 0 if it
// is unlimited (struct rta_cacheinfo of linux/rtnetlink.h).
func (r *placedRoute) expires() uint32 {
	info := r.value(unix.RTA_CACHEINFO)
	if r.family != unix.AF_INET6 || len(info) < 12 {
		return 0
	}
	ticks := int32(binary.NativeEndian.Uint32(info[8:]))
	if ticks <= 0 {
		return 0
	}
	return uint32(ticks)/userTicks + 1
}

// addNeigh returns the request that adds the neighbour to the link.
func addNeigh(n rtnl.Neigh, to moveTarget) nlconn.Message {
	n.Link, n.Flags = to.index, n.Flags&unix.NTF_ROUTER
	if n.State&(unix.NUD_PERMANENT|unix.NUD_REACHABLE) == 0 {
		n.State = unix.NUD_STALE
	}
	return nlconn.Message{Kind: unix.RTM_NEWNEIGH, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: n.Append(nil)}
}

// object returns the address as plans and errors show it.
func (a *placedAddr) object(link string) Object {
	return &Addr{In: Host, Shared: true, Link: link, Address: a.Prefix}
}

func (r *placedRoute) object(link string) Object {
	o := routeOf(&r.Route, Host, link)
	o.Shared, o.Local = true, r.kind == unix.RTN_LOCAL
	return o
}
