// Package rawudp sends and receives UDP datagrams on one link. The link does not
// need an address.
package rawudp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	ipv4Header = 20
	udpHeader  = 8
	// maxDatagram is more than one frame of a jumbo link carries.
	maxDatagram = 16 << 10
)

// Datagram is a received datagram.
type Datagram struct {
	From netip.AddrPort
	// MAC is the sender's MAC on the link. It is empty if the link has no MACs,
	// and for UDP6.
	MAC     net.HardwareAddr
	Payload []byte
}

// Conn sends and receives IPv4 UDP datagrams on one link below the IP layer, so
// that the link does not need an address (RFC 2131, section 4.1). It is safe for
// one sender and one receiver.
type Conn struct {
	conn nlconn.Socket
	// sink is a UDP socket on the port that is never read. Without it, the kernel
	// would report to senders that the port is closed, as soon as the interface
	// has its address.
	sink  int
	index int
	port  uint16
	buf   []byte
}

// Open opens a port on the link with an index, in the calling thread's network
// namespace.
func Open(index int, port uint16) (*Conn, error) {
	u := &Conn{sink: -1, index: index, port: port, buf: make([]byte, maxDatagram)}
	var err error
	u.sink = openSink(index, port)
	u.conn, err = openSocket(unix.AF_PACKET, unix.SOCK_DGRAM, func(fd int) error {
		// Bind after the filter is attached, so that only datagrams to the port
		// arrive.
		filter := udpFilter(port)
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian16(unix.ETH_P_IP), Ifindex: index})
	})
	if err != nil && u.sink >= 0 {
		_ = unix.Close(u.sink)
	}
	return u, nlconn.Explain(err, fmt.Sprintf("open UDP port %d on link %d", port, index))
}

// openSink binds a UDP socket to a port of a link. It returns -1 if another
// socket has the port.
func openSink(index int, port uint16) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}),
	)
	if err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// Send sends a datagram to a MAC, or to the broadcast MAC if mac is nil.
func (u *Conn) Send(ctx context.Context, from netip.Addr, to netip.AddrPort, mac net.HardwareAddr, payload []byte) error {
	if !from.Is4() || !to.Addr().Is4() || len(payload) > maxDatagram || len(mac) > 8 {
		return fmt.Errorf("send from %s to %s: %w", from, to, nlconn.ErrInvalid)
	}
	if mac == nil {
		mac = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	sa := &unix.SockaddrLinklayer{Protocol: bigEndian16(unix.ETH_P_IP), Ifindex: u.index, Halen: uint8(len(mac))}
	copy(sa.Addr[:], mac)
	err := u.conn.Send(ctx, packUDP(netip.AddrPortFrom(from, u.port), to, payload), sa)
	return nlconn.Explain(err, fmt.Sprintf("send to %s", to))
}

// Receive waits for the next datagram. Its payload is valid until the next call.
func (u *Conn) Receive(ctx context.Context) (Datagram, error) {
	for {
		n, from, err := u.conn.Receive(ctx, u.buf, 0)
		if err != nil {
			return Datagram{}, nlconn.Explain(err, "receive")
		}
		d, ok := unpackUDP(u.buf[:n])
		if !ok {
			continue
		}
		if ll, isLL := from.(*unix.SockaddrLinklayer); isLL && int(ll.Halen) <= len(ll.Addr) {
			d.MAC = append(net.HardwareAddr(nil), ll.Addr[:ll.Halen]...)
		}
		return d, nil
	}
}

// Close closes the port. Closing a packet socket waits for a grace period of the
// kernel (10 ms), so a goroutine does it.
func (u *Conn) Close() {
	if u.sink >= 0 {
		_ = unix.Close(u.sink)
	}
	go func() { _ = u.conn.Close() }()
}

// UDP6 is a UDP port of one IPv6 address of a link.
type UDP6 struct {
	conn  nlconn.Socket
	index int
	buf   []byte
}

// OpenUDP6 opens a port of a link's address in the calling thread's network
// namespace. The address may be link-local.
func OpenUDP6(index int, at netip.AddrPort) (*UDP6, error) {
	u := &UDP6{index: index, buf: make([]byte, maxDatagram)}
	var err error
	u.conn, err = openSocket(unix.AF_INET6, unix.SOCK_DGRAM, func(fd int) error {
		err := errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
		)
		if err != nil {
			return err
		}
		// The kernel joins the solicited-node group only a moment after it has
		// the address. Without this membership a neighbour solicitation may be
		// lost, and its answer arrives a second later.
		group := &unix.IPv6Mreq{Multiaddr: solicitedNode(at.Addr()), Interface: uint32(index)}
		if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, group); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet6{Port: int(at.Port()), ZoneId: uint32(index), Addr: at.Addr().As16()})
	})
	return u, nlconn.Explain(err, fmt.Sprintf("open UDP port %s on link %d", at, index))
}

// Send sends a datagram over the link.
func (u *UDP6) Send(ctx context.Context, to netip.AddrPort, payload []byte) error {
	sa := &unix.SockaddrInet6{Port: int(to.Port()), ZoneId: uint32(u.index), Addr: to.Addr().As16()}
	return nlconn.Explain(u.conn.Send(ctx, payload, sa), fmt.Sprintf("send to %s", to))
}

// Receive waits for the next datagram. Its payload is valid until the next call.
func (u *UDP6) Receive(ctx context.Context) (Datagram, error) {
	n, from, err := u.conn.Receive(ctx, u.buf, 0)
	if err != nil {
		return Datagram{}, nlconn.Explain(err, "receive")
	}
	d := Datagram{Payload: u.buf[:n]}
	if in6, ok := from.(*unix.SockaddrInet6); ok {
		d.From = netip.AddrPortFrom(netip.AddrFrom16(in6.Addr), uint16(in6.Port))
	}
	return d, nil
}

// Close closes the port.
func (u *UDP6) Close() error { return u.conn.Close() }

// solicitedNode returns the multicast group that receives the neighbour
// solicitations for an address (RFC 4291, section 2.7.1).
func solicitedNode(a netip.Addr) [16]byte {
	low := a.As16()
	return [16]byte{0xff, 2, 11: 1, 12: 0xff, 13: low[13], 14: low[14], 15: low[15]}
}

// openSocket makes a socket and calls prepare before the runtime's poller gets
// the socket.
func openSocket(domain, kind int, prepare func(fd int) error) (s nlconn.Socket, err error) {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return s, err
	}
	if err := prepare(fd); err != nil {
		_ = unix.Close(fd)
		return s, err
	}
	return nlconn.NewSocket(fd, "udp"), nil
}

// udpFilter returns a classic BPF filter that accepts IPv4 UDP datagrams to a
// port. It drops fragments. The packet begins with its IP header.
func udpFilter(port uint16) []unix.SockFilter {
	const drop = 8
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: drop - 2},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 6},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x3fff, Jt: drop - 4},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: drop - 7},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// packUDP puts IPv4 and UDP headers before a payload (RFC 791, RFC 768).
func packUDP(from, to netip.AddrPort, payload []byte) []byte {
	b := make([]byte, ipv4Header+udpHeader+len(payload))
	src, dst := from.Addr().As4(), to.Addr().As4()
	b[0] = 0x45
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[8], b[9] = 64, unix.IPPROTO_UDP
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[10:], ^onesSum(0, b[:ipv4Header]))
	udp := b[ipv4Header:]
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[udpHeader:], payload)
	pseudo := onesSum(uint32(unix.IPPROTO_UDP)+uint32(len(udp)), b[12:ipv4Header])
	sum := ^onesSum(uint32(pseudo), udp)
	if sum == 0 {
		sum = 0xffff // 0 means that there is no checksum
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

// unpackUDP removes the headers. It does not verify the checksum: datagrams of
// local programs may not have it yet, and frames have their own checksum.
func unpackUDP(b []byte) (Datagram, bool) {
	if len(b) < ipv4Header || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return Datagram{}, false
	}
	header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < ipv4Header || total > len(b) || total < header+udpHeader {
		return Datagram{}, false
	}
	udp := b[header:total]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	if size < udpHeader || size > len(udp) {
		return Datagram{}, false
	}
	src := netip.AddrFrom4([4]byte(b[12:16]))
	return Datagram{From: netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp)), Payload: udp[udpHeader:size]}, true
}

// onesSum returns the ones' complement sum of 16-bit words (RFC 1071).
func onesSum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// bigEndian16 converts a number to network byte order.
func bigEndian16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
