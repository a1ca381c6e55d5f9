// Package reach sends a few packets to an address and reports the answers: an ARP
// request, ICMP echo requests, and a TCP connection or a UDP datagram.
package reach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// arpPatience is the least time to wait for a second answer to an ARP request.
	arpPatience = 100 * time.Millisecond
	// pollInterval is the longest time until the end of the context is noticed.
	pollInterval = 50 * time.Millisecond
	// maxMessages limits the messages that are read: a host may flood the probe.
	maxMessages = 1000
	smallEcho   = 64
)

// Sender sends packets from one address to another. Its sockets are in the namespace
// of the thread that opened it.
type Sender struct {
	// ID is the source port of TCP or UDP and the identifier of ICMP.
	ID       uint16
	from, to netip.Addr
	// conn is the socket of TCP, or with isUDP of UDP.
	conn    int
	isUDP   bool
	icmp    int
	arp     int
	buf     []byte
	answers Answers
	read    int
}

// Request is what a Sender sends besides the echo requests.
type Request struct {
	// Port is the port to connect to, or 0. With UDP it gets an empty datagram.
	Port uint16
	// Link is the index of the outgoing link, MAC its MAC, and Next the IPv4 address
	// that the ARP request is for. Without a MAC or an IPv4 address there is none.
	Link int
	MAC  net.HardwareAddr
	Next netip.Addr
}

// Answers are the answers to the packets of a Sender.
type Answers struct {
	// ARPSent reports whether there was an ARP request, and MACs has who answered.
	ARPSent bool
	MACs    []string
	// MTU is the size of the large echo request with its IP header: the MTU of the
	// route. It has the DF bit. Large and Small report which requests were answered.
	MTU          int
	Large, Small bool
	// Port is "" without an answer of the port. Otherwise it is "connected", or "answer" to a UDP datagram, or
	// "refused" after an RST or an ICMP error of the port, or another error.
	Port string
	// Refusals are the ICMP errors, and errors of the sending host, each once.
	Refusals []Refusal
}

// The values of Answers.Port.
const (
	Connected = "connected"
	Answered  = "answer"
	Refused   = "refused"
)

// Refusal is an ICMP error. From is invalid for an error of the sending host. MTU is
// that of the link for which a packet was too large, or 0.
type Refusal struct {
	From netip.Addr
	Text string
	MTU  int
	// Expired means that the packet's time to live ended.
	Expired bool
}

// Open opens the sockets and chooses the ID. from may be invalid.
func Open(from, to netip.Addr, isUDP bool) (*Sender, error) {
	s := &Sender{from: from, to: to, isUDP: isUDP, conn: -1, icmp: -1, arp: -1, buf: make([]byte, 64<<10)}
	domain, proto := unix.AF_INET, unix.IPPROTO_ICMP
	level, discover := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if to.Is6() {
		domain, proto, level, discover = unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	err := s.open(domain, proto, level, discover)
	if err != nil {
		s.Close()
		return nil, nlconn.Explain(err, fmt.Sprintf("probe from %s to %s", from, to))
	}
	return s, nil
}

// open opens the sockets of the port and of ICMP. The kernel sets DF in what the latter sends.
func (s *Sender) open(domain, proto, level, discover int) (err error) {
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	kind := unix.SOCK_STREAM
	if s.isUDP {
		kind = unix.SOCK_DGRAM
	}
	s.conn, err = unix.Socket(domain, kind|flags, 0)
	if err != nil {
		return err
	}
	s.icmp, err = unix.Socket(domain, unix.SOCK_RAW|flags, proto)
	if err != nil {
		return err
	}
	err = errors.Join(
		unix.SetsockoptInt(s.icmp, level, discover, unix.IP_PMTUDISC_DO), // IPv6 has the same number
		unix.Bind(s.conn, sockaddr(s.source(), 0)),
		unix.Bind(s.icmp, sockaddr(s.source(), 0)),
	)
	if err != nil {
		return err
	}
	own, err := unix.Getsockname(s.conn)
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		s.ID = uint16(a.Port)
	case *unix.SockaddrInet6:
		s.ID = uint16(a.Port)
	}
	return err
}

// source returns the address to bind to.
func (s *Sender) source() netip.Addr {
	if s.from.IsValid() {
		return s.from
	}
	if s.to.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Close closes the sockets.
func (s *Sender) Close() {
	for _, fd := range []int{s.conn, s.icmp, s.arp} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// Send sends everything once and waits for the answers, at most for patience.
func (s *Sender) Send(ctx context.Context, r Request, patience time.Duration) (Answers, error) {
	if err := s.start(r); err != nil {
		return s.answers, nlconn.Explain(err, fmt.Sprintf("probe %s", s.to))
	}
	// Answers that have arrived are read in any case, also on a machine that is very slow.
	start := time.Now()
	for {
		left := max(patience-time.Since(start), 0)
		fds := []unix.PollFd{{Fd: int32(s.icmp), Events: unix.POLLIN}, {Fd: int32(s.arp), Events: unix.POLLIN}}
		if r.Port != 0 && s.answers.Port == "" {
			fds = append(fds, unix.PollFd{Fd: int32(s.conn), Events: map[bool]int16{false: unix.POLLOUT, true: unix.POLLIN}[s.isUDP]})
		}
		_, err := unix.Poll(fds, int(min(left, pollInterval)/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return s.answers, nlconn.Explain(err, "wait for answers")
		}
		if err := ctx.Err(); err != nil {
			return s.answers, err
		}
		s.receiveICMP()
		s.receiveARP(r.Next)
		if len(fds) == 3 && fds[2].Revents != 0 {
			s.answers.Port = s.outcome()
		}
		if left == 0 || s.read > maxMessages || s.isComplete(r) && (!s.answers.ARPSent || time.Since(start) > arpPatience) {
			return s.answers, nil
		}
	}
}

// isComplete reports whether nothing more can be answered.
func (s *Sender) isComplete(r Request) bool {
	a := &s.answers
	return (a.Large || a.isTooBig()) && a.Small && (r.Port == 0 || a.Port != "") && (!a.ARPSent || len(a.MACs) > 0)
}

func (a *Answers) isTooBig() bool {
	for _, r := range a.Refusals {
		if r.MTU != 0 {
			return true
		}
	}
	return false
}

// start sends the packets. An error of the sending host about one packet is a refusal.
func (s *Sender) start(r Request) error {
	if err := s.sendARP(r); err != nil {
		return err
	}
	mtu, err := s.routeMTU()
	if err != nil {
		return err
	}
	header := header4
	if s.to.Is6() {
		header = header6
	}
	s.answers.MTU = min(mtu, 1<<16-1) // the largest IPv4 packet
	for seq, size := range []int{smallEcho, s.answers.MTU - header} {
		if err := unix.Sendto(s.icmp, echo(s.to.Is6(), s.ID, uint16(seq), size), 0, sockaddr(s.to, 0)); err != nil {
			s.refuse(Refusal{Text: err.Error()})
		}
	}
	if r.Port == 0 {
		return nil
	}
	if s.isUDP {
		return s.startUDP(r.Port)
	}
	// The connection is not used: an RST ends it.
	if err := unix.SetsockoptLinger(s.conn, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	switch err := unix.Connect(s.conn, sockaddr(s.to, r.Port)); {
	case err == nil:
		s.answers.Port = Connected
	case !errors.Is(err, unix.EINPROGRESS):
		s.answers.Port = portText(err)
	}
	return nil
}

// startUDP sends an empty datagram, which no server takes for a request.
func (s *Sender) startUDP(port uint16) error {
	err := unix.Connect(s.conn, sockaddr(s.to, port))
	if err == nil {
		err = unix.Send(s.conn, nil, 0)
	}
	if err != nil {
		s.answers.Port = portText(err)
	}
	return nil
}

// routeMTU asks for the MTU of the route: that of the device, of the route, or what a
// router has reported before.
func (s *Sender) routeMTU() (int, error) {
	domain, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU
	if s.to.Is6() {
		domain, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was sent
	if err := unix.Bind(fd, sockaddr(s.source(), 0)); err != nil {
		return 0, err
	}
	if err := unix.Connect(fd, sockaddr(s.to, 9)); err != nil {
		return 0, err
	}
	return unix.GetsockoptInt(fd, level, option)
}

// outcome returns the result of the connection, or of the datagram.
func (s *Sender) outcome() string {
	if s.isUDP {
		_, _, err := unix.Recvfrom(s.conn, s.buf, 0)
		if err != nil {
			return portText(err)
		}
		return Answered
	}
	code, err := unix.GetsockoptInt(s.conn, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return err.Error()
	case code == 0:
		return Connected
	}
	return portText(unix.Errno(code))
}

func portText(err error) string {
	if errors.Is(err, unix.ECONNREFUSED) {
		return Refused
	}
	return err.Error()
}

func (s *Sender) refuse(r Refusal) {
	for _, have := range s.answers.Refusals {
		if have == r {
			return
		}
	}
	s.answers.Refusals = append(s.answers.Refusals, r)
}

// receiveICMP reads the waiting messages.
func (s *Sender) receiveICMP() {
	for s.read <= maxMessages {
		n, sa, err := unix.Recvfrom(s.icmp, s.buf, 0)
		if err != nil {
			return // nothing more, or an error that the answers show
		}
		s.read++
		m := s.buf[:n]
		if s.to.Is4() { // a raw IPv4 socket receives the IP header too
			size := 0
			if n > 0 {
				size = int(m[0]&0xf) * 4
			}
			if size < header4 || size > n {
				continue
			}
			m = m[size:]
		}
		r, ok := s.decode(m, addrOf(sa))
		switch {
		case !ok:
		case !r.isEcho:
			s.refuse(r.refusal)
		case r.echo == 0:
			s.answers.Small = true
		default:
			s.answers.Large = true
		}
	}
}

// arpSize is the size of an ARP packet for Ethernet and IPv4 (RFC 826).
const arpSize = 28

func (s *Sender) sendARP(r Request) (err error) {
	if !r.Next.Is4() || !s.from.Is4() || len(r.MAC) != 6 {
		return nil
	}
	s.arp, err = openARP(r.Link)
	if err != nil {
		s.arp = -1
		return err
	}
	if err := broadcast(s.arp, r.Link, arpRequest(r.MAC, s.from, r.Next)); err != nil {
		return nil // the link is down or has no ARP; the other answers show it
	}
	s.answers.ARPSent = true
	return nil
}

// receiveARP reads the waiting ARP answers for an address.
func (s *Sender) receiveARP(next netip.Addr) {
	for s.arp >= 0 && s.read <= maxMessages {
		n, _, err := unix.Recvfrom(s.arp, s.buf, 0)
		if err != nil {
			return
		}
		s.read++
		if mac := arpAnswer(s.buf[:n], next); mac != "" && !slices.Contains(s.answers.MACs, mac) {
			s.answers.MACs = append(s.answers.MACs, mac)
		}
	}
}

// arpAnswer returns the MAC in an ARP answer of an address, or "".
func arpAnswer(m []byte, of netip.Addr) string {
	if len(m) < arpSize || !bytes.Equal(m[2:8], []byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff, 6, 4, 0, 2}) || netip.AddrFrom4([4]byte(m[14:])) != of {
		return ""
	}
	return net.HardwareAddr(m[8:14]).String()
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
}

func addrOf(sa unix.Sockaddr) netip.Addr {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}
