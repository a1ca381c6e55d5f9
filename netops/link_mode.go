package netops

import (
	"context"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// differMode notes what of promiscuous mode, multicast reception and transmit
// queue is to be set, and how to set it back: off and back are what set and old
// take away.
func (l *Link) differMode(have *rtnl.Link, set, old *Link, off, back *Unset) {
	var unset Unset
	if l.Unset != nil {
		unset = *l.Unset
	}
	if have.IsPromisc() {
		off.Promisc, old.Promisc = unset.Promisc, unset.Promisc
	} else {
		set.Promisc, back.Promisc = l.Promisc, l.Promisc
	}
	if have.IsAllMulti() {
		off.AllMulti, old.AllMulti = unset.AllMulti, unset.AllMulti
	} else {
		set.AllMulti, back.AllMulti = l.AllMulti, l.AllMulti
	}
	if l.TxQLen != nil && *l.TxQLen != have.TxQLen {
		was := have.TxQLen
		set.TxQLen, old.TxQLen = l.TxQLen, &was
	}
}

// verifyMode compares the same.
func (l *Link) verifyMode(have *rtnl.Link, d *differences) {
	if l.Promisc || l.Unset != nil && l.Unset.Promisc {
		d.compare("promisc", onOff(l.Promisc), onOff(have.IsPromisc()))
	}
	if l.AllMulti || l.Unset != nil && l.Unset.AllMulti {
		d.compare("allmulticast", onOff(l.AllMulti), onOff(have.IsAllMulti()))
	}
	if l.TxQLen != nil {
		d.compare("txqueuelen", queueLength(*l.TxQLen), queueLength(have.TxQLen))
	}
}

// tuned is the link that l sets back: who is in the container may have given it
// another name, and another link its name. The error wraps ErrNotExist without one.
func (s *session) tuned(ctx context.Context, l *Link) (*rtnl.Link, error) {
	have, err := s.findLink(ctx, l.In, l.Name)
	if err != nil || have != nil && have.Index == l.Index {
		return have, err
	}
	c, err := s.conn(l.In)
	if err != nil {
		return nil, err
	}
	return c.LinkByIndex(ctx, l.Index)
}

// modeFlags asks for the reception modes.
func (l *Link) modeFlags(ifi *nl.IfInfomsg, unset Unset) {
	rtnl.SetFlag(ifi, l.Promisc, unset.Promisc, unix.IFF_PROMISC)
	rtnl.SetFlag(ifi, l.AllMulti, unset.AllMulti, unix.IFF_ALLMULTI)
}

func queueLength(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// ownAttrs are MAC, MTU and queue length where they are set.
func (l *Link) ownAttrs() []nl.NetlinkRequestData {
	attrs := rtnl.HardwareAttrs(l.MAC, l.MTU)
	if l.TxQLen != nil {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_TXQLEN, nl.Uint32Attr(*l.TxQLen)))
	}
	return attrs
}
