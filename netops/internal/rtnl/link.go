package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// skipStats omits the counters from link messages (RTEXT_FILTER_SKIP_STATS).
const skipStats = 1 << 3

// inet6ConfAcceptRA is accept_ra in IFLA_INET6_CONF (linux/ipv6.h, DEVCONF_ACCEPT_RA).
const inet6ConfAcceptRA = 3

// OperUp is IF_OPER_UP of RFC 2863.
const OperUp = 6

// Link is a link as the kernel reports it.
type Link struct {
	Index, Master, Peer, MTU int
	Flags, TxQLen, Group     uint32
	Oper                     uint8
	Name, Kind, Alias        string
	MAC                      net.HardwareAddr
	Port                     *Port  // set for bridge ports
	PortState                uint8  // of a bridge port: BR_STATE_* of linux/if_bridge.h
	XDP                      uint32 // the number of the program of XDP that sees its packets, or 0
	// BeforeBond is the MAC that a bond's link had before, and gets again after. A bond sets the MAC and the MTU of its links.
	BeforeBond net.HardwareAddr
	// Permanent is the MAC of the hardware. Only physical devices have one.
	Permanent net.HardwareAddr
	// PeerElsewhere reports whether Peer is an index in another namespace, whose
	// number is PeerNamespace.
	PeerElsewhere bool
	PeerNamespace int
	// AcceptRA is the link's accept_ra setting. It is valid if HasAcceptRA is
	// set.
	AcceptRA    int32
	HasAcceptRA bool
	KindState
}

// IsUp reports whether the link is set up (IFF_UP).
func (l *Link) IsUp() bool { return l.Flags&unix.IFF_UP != 0 }

// IsPromisc reports whether promiscuous mode is on.
func (l *Link) IsPromisc() bool { return l.Flags&unix.IFF_PROMISC != 0 }

// IsAllMulti reports whether the link receives all multicast packets.
func (l *Link) IsAllMulti() bool { return l.Flags&unix.IFF_ALLMULTI != 0 }

// IsNoARP reports whether the link does not resolve addresses (IFF_NOARP).
func (l *Link) IsNoARP() bool { return l.Flags&unix.IFF_NOARP != 0 }

// Link reads one link by name.
func (c *Conn) Link(ctx context.Context, name string) (*Link, error) {
	l, err := c.FindLink(ctx, name)
	if l == nil && err == nil {
		err = NoLink(name)
	}
	return l, err
}

// NoLink returns the error for a link that does not exist.
func NoLink(name string) error { return linkError(name, unix.ENODEV) }

func linkError(name string, err error) error {
	return nlconn.Explain(err, fmt.Sprintf("link %q", name))
}

// FindLink reads one link by name, and returns nil if the link is absent. Usually
// the link is expected to be absent; returning nil avoids building an unused
// error.
func (c *Conn) FindLink(ctx context.Context, name string) (*Link, error) {
	m := LinkQuery(0)
	m.Text(unix.IFLA_IFNAME, name)
	l, err := c.oneLink(ctx, m)
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, linkError(name, err)
	}
	return l, nil
}

// LinkByIndex reads one link by its index.
func (c *Conn) LinkByIndex(ctx context.Context, index int) (*Link, error) {
	l, err := c.oneLink(ctx, LinkQuery(index))
	if err != nil {
		return nil, nlconn.Explain(err, fmt.Sprintf("link %d", index))
	}
	return l, nil
}

func (c *Conn) oneLink(ctx context.Context, m nlconn.Message) (*Link, error) {
	data, err := c.Query(ctx, m)
	if err != nil {
		return nil, err
	}
	return ParseLink(data)
}

// Links reads all links.
func (c *Conn) Links(ctx context.Context) ([]*Link, error) {
	all, err := nlconn.List(ctx, c.Conn, LinkQuery(0), func(data []byte) (*Link, bool, error) {
		l, err := ParseLink(data)
		return l, true, err
	})
	return all, nlconn.Explain(err, "list links")
}

// LinkQuery returns the request for the link with an index. With index 0 it
// requests all links in a dump, or one link whose name the caller appends.
func LinkQuery(index int) nlconn.Message {
	m := LinkMessage(unix.RTM_GETLINK, index)
	m.Uint32(unix.IFLA_EXT_MASK, skipStats)
	return m
}

// ParseLink reads the body of RTM_NEWLINK.
func ParseLink(b []byte) (*Link, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("link message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	l := &Link{
		Index: int(int32(binary.NativeEndian.Uint32(b[4:]))),
		Flags: binary.NativeEndian.Uint32(b[8:]),
	}
	var info, families []byte
	err := nlconn.ReadAttrs(b[unix.SizeofIfInfomsg:], []nlconn.Attr{
		{Kind: unix.IFLA_IFNAME, At: &l.Name},
		{Kind: unix.IFLA_ADDRESS, At: &l.MAC},
		{Kind: unix.IFLA_PERM_ADDRESS, At: &l.Permanent},
		{Kind: unix.IFLA_MTU, At: &l.MTU},
		{Kind: unix.IFLA_TXQLEN, At: &l.TxQLen},
		{Kind: unix.IFLA_MASTER, At: &l.Master},
		{Kind: unix.IFLA_LINK, At: &l.Peer},
		{Kind: unix.IFLA_IFALIAS, At: &l.Alias},
		{Kind: unix.IFLA_GROUP, At: &l.Group},
		{Kind: unix.IFLA_OPERSTATE, At: &l.Oper},
		{Kind: unix.IFLA_LINKINFO, At: &info},
		{Kind: unix.IFLA_AF_SPEC, At: &families},
		{Kind: unix.IFLA_XDP, At: func(v []byte) error {
			return nlconn.ReadAttrs(v, []nlconn.Attr{{Kind: unix.IFLA_XDP_PROG_ID, At: &l.XDP}})
		}},
		{Kind: unix.IFLA_LINK_NETNSID, At: func(v []byte) error {
			l.PeerElsewhere, l.PeerNamespace = true, attrSigned(v)
			return nil
		}},
	})
	if err == nil {
		err = l.parseInfo(info)
	}
	if err == nil {
		err = l.parseFamilies(families)
	}
	return l, err
}

// parseFamilies reads IFLA_AF_SPEC, the attributes of the address families.
func (l *Link) parseFamilies(b []byte) error {
	conf, err := nlconn.Find(b, unix.AF_INET6, unix.IFLA_INET6_CONF)
	if len(conf) >= 4*(inet6ConfAcceptRA+1) {
		l.AcceptRA, l.HasAcceptRA = int32(nlconn.Int(conf[4*inet6ConfAcceptRA:])), true
	}
	return err
}

// parseInfo reads IFLA_LINKINFO: the kind, its attributes, and those of a bridge's port or a bond's link.
func (l *Link) parseInfo(b []byte) error {
	var data, portData []byte
	var master string
	err := nlconn.ReadAttrs(b, []nlconn.Attr{
		{Kind: nl.IFLA_INFO_KIND, At: &l.Kind},
		{Kind: nl.IFLA_INFO_DATA, At: &data},
		{Kind: nl.IFLA_INFO_SLAVE_KIND, At: &master},
		{Kind: nl.IFLA_INFO_SLAVE_DATA, At: &portData},
	})
	if err == nil {
		err = l.parseKind(data)
	}
	if err == nil && master == KindBond {
		return nlconn.ReadAttrs(portData, []nlconn.Attr{{Kind: nl.IFLA_BOND_SLAVE_PERM_HWADDR, At: &l.BeforeBond}})
	}
	if err != nil || master != KindBridge {
		return err
	}
	l.Port = &Port{}
	return nlconn.ReadAttrs(portData, append(l.Port.attrs(), nlconn.Attr{Kind: nl.IFLA_BRPORT_STATE, At: &l.PortState}))
}
