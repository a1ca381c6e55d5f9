package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// SizeofNeighHeader is the size of struct ndmsg.
const SizeofNeighHeader = 12

// NeighHeader is struct ndmsg of linux/neighbour.h.
type NeighHeader struct {
	Family uint8
	Index  uint32
	State  uint16
	Flags  uint8
}

// Len returns the size in bytes.
func (m *NeighHeader) Len() int { return SizeofNeighHeader }

// Serialize returns the header's bytes.
func (m *NeighHeader) Serialize() []byte {
	b := make([]byte, 4, SizeofNeighHeader)
	b[0] = m.Family
	b = binary.NativeEndian.AppendUint32(b, m.Index)
	b = binary.NativeEndian.AppendUint16(b, m.State)
	return append(b, m.Flags, 0)
}

// Neigh is a permanent neighbour or static forwarding entry.
type Neigh struct {
	IP  netip.Addr
	MAC net.HardwareAddr
}

// Neighbour reads one neighbour entry of a link. It does not list them all,
// because a link may have one entry for each container.
func (c *Conn) Neighbour(ctx context.Context, index int, ip netip.Addr) (have Neigh, there bool, err error) {
	nd := &NeighHeader{Family: Family(ip), Index: uint32(index)}
	data, err := c.Query(ctx, nlconn.Message{
		Kind: unix.RTM_GETNEIGH, Data: []nl.NetlinkRequestData{nd, nl.NewRtAttr(unix.NDA_DST, ip.AsSlice())},
	})
	if errors.Is(err, unix.ENOENT) {
		return have, false, nil
	}
	if err != nil {
		return have, false, err
	}
	return parseNeigh(data, index)
}

// Forwarding finds an entry for which is returns true among the forwarding
// entries of a link. It dumps all of them, because several may have the same MAC.
// The kernel filters the dump by the link in the header.
func (c *Conn) Forwarding(ctx context.Context, index int, is func(Neigh) bool) (have Neigh, there bool, err error) {
	m := nlconn.Message{Kind: unix.RTM_GETNEIGH, Data: []nl.NetlinkRequestData{&NeighHeader{Family: unix.AF_BRIDGE, Index: uint32(index)}}}
	err = c.Dump(ctx, m, func() { there = false }, func(_ uint16, data []byte) error {
		e, ok, err := parseNeigh(data, index)
		if ok && is(e) {
			have, there = e, true
		}
		return err
	})
	return have, there, err
}

// parseNeigh reads the body of RTM_NEWNEIGH. ok is false for the entries of other
// links and for learnt entries.
func parseNeigh(b []byte, index int) (n Neigh, ok bool, err error) {
	if len(b) < SizeofNeighHeader {
		return n, false, fmt.Errorf("neighbour message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	state := binary.NativeEndian.Uint16(b[8:])
	ok = int(int32(binary.NativeEndian.Uint32(b[4:]))) == index && state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
	err = nlconn.EachAttr(b[SizeofNeighHeader:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.NDA_DST:
			n.IP, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			n.MAC = append(net.HardwareAddr(nil), v...)
		}
		return nil
	})
	return n, ok && err == nil, err
}
