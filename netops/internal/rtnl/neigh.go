package rtnl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// SizeofNeighHeader is the size of struct ndmsg.
const SizeofNeighHeader = 12

// Neigh is a neighbour, or an entry of a forwarding database, in any state.
type Neigh struct {
	Link          int
	State         uint16 // NUD_*
	Family, Flags uint8
	IP            netip.Addr
	MAC           net.HardwareAddr // empty if the entry has none
}

// Append appends the body of a request: struct ndmsg of linux/neighbour.h and the attributes.
func (n *Neigh) Append(b nlconn.Body) nlconn.Body {
	b = binary.NativeEndian.AppendUint32(append(b, n.Family, 0, 0, 0), uint32(n.Link))
	b = append(binary.NativeEndian.AppendUint16(b, n.State), n.Flags, 0)
	b.Attrs([]nlconn.Attr{{Kind: unix.NDA_DST, At: &n.IP}, {Kind: unix.NDA_LLADDR, At: &n.MAC}})
	return b
}

// NeighsMessage returns the request for the entries of a link, of one family or of all for 0. For
// AF_BRIDGE these are forwarding entries.
func NeighsMessage(family uint8, link int) nlconn.Message {
	m := nlconn.Message{Kind: unix.RTM_GETNEIGH}
	if family == unix.AF_BRIDGE { // the kernel filters the bridge's dump by the header, not by the attribute
		m.Body = (&Neigh{Family: family, Link: link}).Append(nil)
	} else {
		m.Body = (&Neigh{Family: family}).Append(nil)
		m.Uint32(unix.NDA_IFINDEX, uint32(link))
	}
	return m
}

// isStatic reports whether the entry was not learnt.
func (n *Neigh) isStatic() bool { return n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 }

// Neighbour reads one permanent neighbour entry of a link. It does not list them
// all, because a link may have one entry for each container.
func (c *Conn) Neighbour(ctx context.Context, index int, ip netip.Addr) (have Neigh, there bool, err error) {
	m := nlconn.Message{Kind: unix.RTM_GETNEIGH, Body: (&Neigh{Family: Family(ip), Link: index, IP: ip}).Append(nil)}
	data, err := c.Query(ctx, m)
	if errors.Is(err, unix.ENOENT) {
		return have, false, nil
	}
	if err != nil {
		return have, false, err
	}
	have, err = ParseNeigh(data)
	have.MAC = bytes.Clone(have.MAC)
	return have, err == nil && have.Link == index && have.isStatic(), err
}

// Forwarding finds an entry for which is returns true among the static forwarding
// entries of a link. It dumps all of them, because several may have the same MAC.
// The kernel filters the dump by the link in the header.
func (c *Conn) Forwarding(ctx context.Context, index int, is func(Neigh) bool) (have Neigh, there bool, err error) {
	all, err := c.StaticNeighs(ctx, index, unix.AF_BRIDGE)
	for _, n := range all {
		if is(n) {
			have, there = n, true
		}
	}
	return have, there, err
}

// StaticNeighs lists the entries of a link that were not learnt, of one family. For AF_BRIDGE
// these are forwarding entries.
func (c *Conn) StaticNeighs(ctx context.Context, index int, family uint8) ([]Neigh, error) {
	return c.Neighs(ctx, family, index, (*Neigh).isStatic)
}

// Neighs lists the selected entries of a link, of one family or of all for 0.
func (c *Conn) Neighs(ctx context.Context, family uint8, index int, selected func(*Neigh) bool) ([]Neigh, error) {
	return nlconn.List(ctx, c.Conn, NeighsMessage(family, index), func(data []byte) (Neigh, bool, error) {
		n, err := ParseNeigh(data)
		if err != nil || n.Link != index || !selected(&n) {
			return n, false, err
		}
		n.MAC = bytes.Clone(n.MAC)
		return n, true, nil
	})
}

// StaticForwarding lists the entries of all bridges that were not learnt.
func (c *Conn) StaticForwarding(ctx context.Context) ([]Neigh, error) {
	return nlconn.List(ctx, c.Conn, NeighsMessage(unix.AF_BRIDGE, 0), func(data []byte) (Neigh, bool, error) {
		n, err := ParseNeigh(data)
		if err != nil || n.Flags&unix.NTF_SELF != 0 || !n.isStatic() {
			return n, false, err
		}
		n.MAC = bytes.Clone(n.MAC)
		return n, true, nil
	})
}

// ParseNeigh reads the body of RTM_NEWNEIGH or RTM_DELNEIGH. The MAC is a slice of
// b.
func ParseNeigh(b []byte) (n Neigh, err error) {
	if len(b) < SizeofNeighHeader {
		return n, fmt.Errorf("neighbour message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	n.Family, n.Link = b[0], int(int32(binary.NativeEndian.Uint32(b[4:])))
	n.State, n.Flags = binary.NativeEndian.Uint16(b[8:]), b[10]
	err = nlconn.ReadAttrs(b[SizeofNeighHeader:], []nlconn.Attr{{Kind: unix.NDA_DST, At: &n.IP}, {Kind: unix.NDA_LLADDR, At: (*[]byte)(&n.MAC)}})
	return n, err
}
