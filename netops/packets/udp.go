package packets

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/rawudp"
)

// Datagram is a received UDP datagram.
type Datagram = rawudp.Datagram

// RawUDP sends and receives IPv4 UDP datagrams on one link below the IP layer. A link
// that has no address yet can use it (RFC 2131, section 4.1). One sender and one
// receiver can use it concurrently.
type RawUDP = rawudp.Conn

// UDP6 is a UDP socket bound to one IPv6 address of a link.
type UDP6 = rawudp.UDP6

// OpenRawUDP opens a UDP port on the link with the index. The socket stays in its namespace
// and usable after ns is closed.
func OpenRawUDP(ns *netops.Namespace, index int, port uint16) (u *RawUDP, err error) {
	err = ns.Run(func() error {
		u, err = rawudp.Open(index, port)
		return err
	})
	return u, err
}

// OpenUDP6 opens a UDP port on an address of the link with the index. The address may
// be link-local. The socket stays in its namespace and usable after ns is closed.
func OpenUDP6(ns *netops.Namespace, index int, at netip.AddrPort) (u *UDP6, err error) {
	err = ns.Run(func() error {
		u, err = rawudp.OpenUDP6(index, at)
		return err
	})
	return u, err
}
