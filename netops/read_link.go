package netops

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

// skipStats leaves counters out of link messages (RTEXT_FILTER_SKIP_STATS).
const skipStats = 1 << 3

// operUp is IF_OPER_UP of RFC 2863.
const operUp = 6

// linkState is a link as the kernel tells it.
type linkState struct {
	index, master, peer, mtu int
	flags, txQLen            uint32
	oper                     uint8
	name, kind, alias        string
	mac                      net.HardwareAddr
	port                     *Port // set for bridge ports
	vlanFiltering            bool
	// permanent is the hardware's own MAC, of real devices only.
	permanent net.HardwareAddr
	// peerElsewhere tells that peer counts in another namespace, of the number
	// peerNamespace.
	peerElsewhere bool
	peerNamespace int
	// acceptRA is the setting of IPv6, where the link has that.
	acceptRA    int32
	hasAcceptRA bool
	kindState
}

func (l *linkState) isUp() bool      { return l.flags&unix.IFF_UP != 0 }
func (l *linkState) isPromisc() bool { return l.flags&unix.IFF_PROMISC != 0 }

// link reads one link by name.
func (c *rtConn) link(ctx context.Context, name string) (*linkState, error) {
	l, err := c.findLink(ctx, name)
	if l == nil && err == nil {
		err = noLink(name)
	}
	return l, err
}

func noLink(name string) error { return linkError(name, unix.ENODEV) }

func linkError(name string, err error) error {
	return nlconn.Explain(err, fmt.Sprintf("link %q", name))
}

// findLink is link, with nil for one that is absent: most are asked for to be that,
// and an error that nobody reads costs as much as the question.
func (c *rtConn) findLink(ctx context.Context, name string) (*linkState, error) {
	m := linkQuery(0)
	m.Data = append(m.Data, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	l, err := c.oneLink(ctx, m)
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, linkError(name, err)
	}
	return l, nil
}

// linkByIndex reads one link by its index.
func (c *rtConn) linkByIndex(ctx context.Context, index int) (*linkState, error) {
	l, err := c.oneLink(ctx, linkQuery(index))
	if err != nil {
		return nil, nlconn.Explain(err, fmt.Sprintf("link %d", index))
	}
	return l, nil
}

func (c *rtConn) oneLink(ctx context.Context, m nlconn.Message) (*linkState, error) {
	data, err := c.Query(ctx, m)
	if err != nil {
		return nil, err
	}
	return parseLink(data)
}

// links reads all links.
func (c *rtConn) links(ctx context.Context) ([]*linkState, error) {
	var all []*linkState
	err := c.Dump(ctx, linkQuery(0), func() { all = nil }, func(kind uint16, data []byte) error {
		l, err := parseLink(data)
		if err == nil && kind == unix.RTM_NEWLINK {
			all = append(all, l)
		}
		return err
	})
	return all, nlconn.Explain(err, "list links")
}

func linkQuery(index int) nlconn.Message {
	ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ifi.Index = int32(index)
	return nlconn.Message{Kind: unix.RTM_GETLINK, Data: []nl.NetlinkRequestData{
		ifi, nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)),
	}}
}

// parseLink reads the body of RTM_NEWLINK.
func parseLink(b []byte) (*linkState, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("link message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	l := &linkState{
		index: int(int32(binary.NativeEndian.Uint32(b[4:]))),
		flags: binary.NativeEndian.Uint32(b[8:]),
	}
	return l, nlconn.EachAttr(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = nlconn.Text(v)
		case unix.IFLA_ADDRESS:
			l.mac = append(net.HardwareAddr(nil), v...)
		case unix.IFLA_PERM_ADDRESS:
			l.permanent = append(net.HardwareAddr(nil), v...)
		case unix.IFLA_MTU:
			l.mtu = nlconn.Int(v)
		case unix.IFLA_TXQLEN:
			l.txQLen = uint32(nlconn.Int(v))
		case unix.IFLA_MASTER:
			l.master = nlconn.Int(v)
		case unix.IFLA_LINK:
			l.peer = nlconn.Int(v)
		case unix.IFLA_LINK_NETNSID:
			l.peerElsewhere, l.peerNamespace = true, attrSigned(v)
		case unix.IFLA_IFALIAS:
			l.alias = nlconn.Text(v)
		case unix.IFLA_OPERSTATE:
			l.oper = nlconn.Byte(v)
		case unix.IFLA_LINKINFO:
			return l.parseInfo(v)
		case unix.IFLA_AF_SPEC:
			return l.parseFamilies(v)
		}
		return nil
	})
}

// parseFamilies reads IFLA_AF_SPEC: what address families have of their own.
func (l *linkState) parseFamilies(b []byte) error {
	return nlconn.EachAttr(b, func(family uint16, v []byte) error {
		if family != unix.AF_INET6 {
			return nil
		}
		return nlconn.EachAttr(v, func(kind uint16, v []byte) error {
			if kind == unix.IFLA_INET6_CONF && len(v) >= 4*(acceptRA+1) {
				l.acceptRA, l.hasAcceptRA = int32(binary.NativeEndian.Uint32(v[4*acceptRA:])), true
			}
			return nil
		})
	})
}

// parseInfo reads IFLA_LINKINFO: the kind, and what bridges and their ports have.
func (l *linkState) parseInfo(b []byte) error {
	var data, portData []byte
	var master string
	err := nlconn.EachAttr(b, func(kind uint16, v []byte) error {
		switch kind {
		case nl.IFLA_INFO_KIND:
			l.kind = nlconn.Text(v)
		case nl.IFLA_INFO_DATA:
			data = v
		case nl.IFLA_INFO_SLAVE_KIND:
			master = nlconn.Text(v)
		case nl.IFLA_INFO_SLAVE_DATA:
			portData = v
		}
		return nil
	})
	switch {
	case err != nil:
	case l.kind == kindBridge:
		err = nlconn.EachAttr(data, func(kind uint16, v []byte) error {
			if kind == nl.IFLA_BR_VLAN_FILTERING {
				l.vlanFiltering = nlconn.Byte(v) != 0
			}
			return nil
		})
	case l.kind != "veth":
		err = l.parseKind(data)
	}
	if err != nil || master != kindBridge {
		return err
	}
	l.port = &Port{}
	return nlconn.EachAttr(portData, func(kind uint16, v []byte) error {
		switch kind {
		case nl.IFLA_BRPORT_MODE:
			l.port.Hairpin = nlconn.Byte(v) != 0
		case nl.IFLA_BRPORT_ISOLATED:
			l.port.Isolated = nlconn.Byte(v) != 0
		default:
			l.port.parseSetting(kind, v)
		}
		return nil
	})
}
