package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Selection selects connections by the protocol and the destination port of the first packet.
type Selection struct {
	Proto uint8
	// If End is not 0, the ports are those from Port to End.
	Port, End uint16
	// Src is the source and Dst the destination of the first packet, and ReplySrc the source of replies. The zero value matches
	// any address. An unspecified address (0.0.0.0, ::) matches any address of its family.
	Src, Dst, ReplySrc netip.Addr
	// Local limits the selection to first packets to a loopback address or to one of Addresses.
	Local     bool
	Addresses map[netip.Addr]bool
}

// Matches reports whether the selection contains the connection.
func (s *Selection) Matches(t Tracked) bool {
	is := func(want, have netip.Addr) bool {
		return !want.IsValid() || want == have || want.IsUnspecified() && want.Is4() == have.Is4()
	}
	dst, port := t.To.Addr(), t.To.Port()
	return t.Protocol == s.Proto && s.Port <= port && port <= max(s.Port, s.End) &&
		is(s.Src, t.Client) && is(s.Dst, dst) && is(s.ReplySrc, t.Server) && (!s.Local || dst.IsLoopback() || s.Addresses[dst])
}

// filter returns the part of the selection that the kernel can match. whole reports
// whether that is the complete selection. The kernel cannot match a port range or local
// addresses, and Src selects connections to all ports. It matches IPv6 addresses wrongly: kernel 6.18 treats the result 0 of
// ipv6_addr_cmp as a difference.
func (s *Selection) filter() (f filter, whole bool) {
	f, whole = filter{proto: s.Proto, port: nlconn.BigEndian16(s.Port)}, !s.Local && !s.Src.IsValid()
	if s.Src.IsValid() {
		f.family = rtnl.Family(s.Src)
	}
	if s.End > s.Port {
		f.port, whole = 0, false
	}
	for _, a := range []struct{ from, to *netip.Addr }{{&s.Dst, &f.dst}, {&s.ReplySrc, &f.replySrc}} {
		if !a.from.IsValid() {
			continue
		}
		f.family = rtnl.Family(*a.from)
		switch {
		case a.from.IsUnspecified():
		case a.from.Is4():
			*a.to = *a.from
		default:
			whole = false
		}
	}
	return f, whole
}

// Message types of ctnetlink requests.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_GET
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE
)

// Constants of linux/netfilter/nfnetlink_conntrack.h that the library lacks. The bits
// select parts of a tuple and are defined in the kernel's nf_internals.h.
const (
	ctaFilter      = 25
	ctaFilterOrig  = 1
	ctaFilterReply = 2

	ctaFilterIPSrc   = 1 << 0
	ctaFilterIPDst   = 1 << 1
	ctaFilterProto   = 1 << 3
	ctaFilterPortDst = 1 << 5
)

// filter is a filter that the kernel applies to connections. A zero field matches
// all values. Addresses are IPv4 addresses.
type filter struct {
	family, proto uint8
	port          nlconn.BigEndian16
	dst, replySrc netip.Addr
}

// common returns a filter that matches at least what f and other match.
func (f filter) common(other filter) filter {
	if f.family != other.family {
		f.family = 0
	}
	if f.proto != other.proto {
		f.proto = 0
	}
	if f.port != other.port || f.proto == 0 { // the kernel matches a port only with a protocol
		f.port = 0
	}
	if f.dst != other.dst {
		f.dst = netip.Addr{}
	}
	if f.replySrc != other.replySrc {
		f.replySrc = netip.Addr{}
	}
	return f
}

// families returns the address families that the filter matches.
func (f filter) families() []uint8 {
	if f.family != 0 {
		return []uint8{f.family}
	}
	return []uint8{unix.AF_INET, unix.AF_INET6}
}

// request returns a request for the connections of one family that the filter
// matches.
func (f filter) request(kind uint16, l3 uint8) nlconn.Message {
	var orig, reply uint32
	if f.dst.IsValid() {
		orig |= ctaFilterIPDst
	}
	if f.proto != 0 {
		orig |= ctaFilterProto
	}
	if f.port != 0 {
		orig |= ctaFilterPortDst
	}
	if f.replySrc.IsValid() {
		reply |= ctaFilterIPSrc
	}
	m := nlconn.Message{Kind: kind, Header: &nl.Nfgenmsg{NfgenFamily: l3}}
	m.Attrs([]nlconn.Attr{
		{Kind: ctaFilter, At: []nlconn.Attr{{Kind: ctaFilterOrig, At: &orig}, {Kind: ctaFilterReply, At: &reply}}},
		{Kind: nl.CTA_TUPLE_ORIG, At: tuple(nlconn.Attr{Kind: nl.CTA_IP_V4_DST, At: &f.dst}, &f.proto, &f.port)},
		{Kind: nl.CTA_TUPLE_REPLY, At: tuple(nlconn.Attr{Kind: nl.CTA_IP_V4_SRC, At: &f.replySrc}, new(uint8), new(nlconn.BigEndian16))},
	})
	return m
}

// tuple describes the attributes of a connection in one direction.
func tuple(address nlconn.Attr, proto *uint8, port *nlconn.BigEndian16) []nlconn.Attr {
	return []nlconn.Attr{
		{Kind: nl.CTA_TUPLE_IP, At: []nlconn.Attr{address}},
		{Kind: nl.CTA_TUPLE_PROTO, At: []nlconn.Attr{{Kind: nl.CTA_PROTO_NUM, At: proto}, {Kind: nl.CTA_PROTO_DST_PORT, At: port}}},
	}
}

// connection is one tracked connection.
type connection struct {
	proto                        uint8
	clientPort, port, serverPort nlconn.BigEndian16
	client, dst                  netip.Addr
	replySrc, replyDst           netip.Addr
	// family, tuple, id and zone identify the connection in a request.
	family          uint8
	tuple, id, zone []byte
}

func (o *connection) tracked() Tracked {
	return Tracked{o.proto, o.client, o.replySrc, uint16(o.serverPort), uint16(o.clientPort), netip.AddrPortFrom(o.dst, uint16(o.port)), len(o.zone) > 0, o.replyDst}
}

// parse decodes a message of the dump. The tuple, ID and zone of the result are slices of b.
func parse(b []byte) (*connection, error) {
	if len(b) < nl.SizeofNfgenmsg {
		return nil, fmt.Errorf("connection message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	o := &connection{family: b[0]}
	var reply []byte
	err := nlconn.ReadAttrs(b[nl.SizeofNfgenmsg:], []nlconn.Attr{
		{Kind: nl.CTA_TUPLE_ORIG, At: &o.tuple}, {Kind: nl.CTA_TUPLE_REPLY, At: &reply}, {Kind: nl.CTA_ID, At: &o.id}, {Kind: nl.CTA_ZONE, At: &o.zone},
	})
	dst, src := uint16(nl.CTA_IP_V4_DST), uint16(nl.CTA_IP_V4_SRC)
	if o.family == unix.AF_INET6 {
		dst, src = nl.CTA_IP_V6_DST, nl.CTA_IP_V6_SRC
	}
	if err == nil {
		err = nlconn.ReadAttrs(o.tuple, []nlconn.Attr{
			{Kind: nl.CTA_TUPLE_IP, At: []nlconn.Attr{{Kind: src, At: &o.client}, {Kind: dst, At: &o.dst}}},
			{Kind: nl.CTA_TUPLE_PROTO, At: []nlconn.Attr{{Kind: nl.CTA_PROTO_NUM, At: &o.proto}, {Kind: nl.CTA_PROTO_SRC_PORT, At: &o.clientPort}, {Kind: nl.CTA_PROTO_DST_PORT, At: &o.port}}},
		})
	}
	if err == nil {
		err = nlconn.ReadAttrs(reply, []nlconn.Attr{
			{Kind: nl.CTA_TUPLE_IP, At: []nlconn.Attr{{Kind: src, At: &o.replySrc}, {Kind: dst, At: &o.replyDst}}},
			{Kind: nl.CTA_TUPLE_PROTO, At: []nlconn.Attr{{Kind: nl.CTA_PROTO_SRC_PORT, At: &o.serverPort}}},
		})
	}
	return o, err
}
