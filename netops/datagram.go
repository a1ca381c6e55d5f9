package netops

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/rawudp"
)

// Datagram is one that came in.
type Datagram = rawudp.Datagram

// RawUDP sends and receives IPv4 UDP datagrams on one link below the IP layer,
// so that an interface can speak that has no address yet (RFC 2131, section
// 4.1). It is safe for one sender and one receiver.
type RawUDP = rawudp.Conn

// UDP6 is a UDP port of one IPv6 address of a link.
type UDP6 = rawudp.UDP6

// OpenRawUDP opens a port on the link with the index, in the host's namespace
// for a nil ns. The socket stays there when ns is closed.
func (n *Net) OpenRawUDP(ns *Namespace, index int, port uint16) (u *RawUDP, err error) {
	err = n.in(ns).visit(func() error {
		u, err = rawudp.Open(index, port)
		return err
	})
	return u, err
}

// OpenUDP6 opens a port of a link's address, which may be link-local, in the
// host's namespace for a nil ns. The socket stays there when ns is closed.
func (n *Net) OpenUDP6(ns *Namespace, index int, at netip.AddrPort) (u *UDP6, err error) {
	err = n.in(ns).visit(func() error {
		u, err = rawudp.OpenUDP6(index, at)
		return err
	})
	return u, err
}
