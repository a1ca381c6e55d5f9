package netops

import (
	"context"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// differMode compares promiscuous mode, reception of all multicasts and the length of the
// transmit queue. It adds the changes to set and off, and their inverses to old and back.
// off becomes set.Unset, and back becomes old.Unset.
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

// verifyMode compares promiscuous mode, reception of all multicasts and the length of the
// transmit queue.
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

// findByIndex finds the link that the inverse l restores. The index identifies it, because the
// container may have renamed it and given its name to another link. The error wraps
// ErrNotExist if the link does not exist.
func (s *session) findByIndex(ctx context.Context, l *Link) (*rtnl.Link, error) {
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

// modeFlags sets the flags of the reception modes in a request.
func (l *Link) modeFlags(ifi *nl.IfInfomsg, unset Unset) {
	rtnl.SetFlag(ifi, l.Promisc, unset.Promisc, unix.IFF_PROMISC)
	rtnl.SetFlag(ifi, l.AllMulti, unset.AllMulti, unix.IFF_ALLMULTI)
}

func queueLength(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// addOwn appends MAC, MTU and queue length, as far as l sets them.
func (l *Link) addOwn(b *nlconn.Body) {
	rtnl.AddHardware(b, l.MAC, l.MTU)
	if l.TxQLen != nil {
		b.Uint32(unix.IFLA_TXQLEN, *l.TxQLen)
	}
}
