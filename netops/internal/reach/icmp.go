package reach

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Types of ICMP (RFC 792) and ICMPv6 messages (RFC 4443).
const (
	echoReply4, unreachable4, echoRequest4, exceeded4          = 0, 3, 8, 11
	unreachable6, tooBig6, exceeded6, echoRequest6, echoReply6 = 1, 2, 3, 128, 129
	// fragmentationNeeded is the code of unreachable4 for a packet that is larger than
	// the next link's MTU.
	fragmentationNeeded = 4
)

const (
	header4, header6 = 20, 40
	echoHeader       = 8
)

// IsEchoReply reports whether an ICMP message of the protocol has the type of an echo
// reply.
func IsEchoReply(proto, kind byte) bool {
	return proto == unix.IPPROTO_ICMP && kind == echoReply4 || proto == unix.IPPROTO_ICMPV6 && kind == echoReply6
}

// EchoID returns the identifier of an ICMP echo message of the protocol, which is 0 for other messages, and whether that is a reply.
func EchoID(proto byte, m []byte) (id uint16, isReply bool) {
	if len(m) < echoHeader {
		return 0, false
	}
	isReply = IsEchoReply(proto, m[0])
	if isReply || proto == unix.IPPROTO_ICMP && m[0] == echoRequest4 || proto == unix.IPPROTO_ICMPV6 && m[0] == echoRequest6 {
		id = binary.BigEndian.Uint16(m[4:])
	}
	return id, isReply
}

// echo returns an echo request of size bytes. The kernel adds the checksum of ICMPv6.
func echo(v6 bool, id, seq uint16, size int) []byte {
	m := make([]byte, max(size, echoHeader))
	m[0] = echoRequest4
	if v6 {
		m[0] = echoRequest6
	}
	binary.BigEndian.PutUint16(m[4:], id)
	binary.BigEndian.PutUint16(m[6:], seq)
	if !v6 {
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	return m
}

// checksum returns the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// received is what an ICMP message says about the packets of a sender.
type received struct {
	// echo has the sequence number of an echo request that was answered.
	echo    uint16
	isEcho  bool
	refusal Refusal
}

// decode reads an ICMP message. ok is false for a message about other packets.
func (s *Sender) decode(m []byte, from netip.Addr) (r received, ok bool) {
	if len(m) < echoHeader {
		return r, false
	}
	v6 := s.to.Is6()
	kind, code := m[0], m[1]
	if kind == echoReply4 && !v6 || kind == echoReply6 && v6 {
		r.isEcho, r.echo = true, binary.BigEndian.Uint16(m[6:])
		return r, binary.BigEndian.Uint16(m[4:]) == s.ID
	}
	r.refusal.From = from
	switch {
	case !v6 && kind == unreachable4 && code == fragmentationNeeded:
		r.refusal.MTU = int(binary.BigEndian.Uint16(m[6:]))
	case v6 && kind == tooBig6:
		r.refusal.MTU = int(binary.BigEndian.Uint32(m[4:]))
	case !v6 && (kind == unreachable4 || kind == exceeded4), v6 && (kind == unreachable6 || kind == exceeded6):
	default:
		return r, false
	}
	r.refusal.Text = describe(v6, kind, code)
	r.refusal.Expired = !v6 && kind == exceeded4 || v6 && kind == exceeded6
	return r, s.quotes(m[echoHeader:])
}

// quotes reports whether the packet in an ICMP error was sent by s.
func (s *Sender) quotes(b []byte) bool {
	proto, size := byte(0), header6
	switch {
	case s.to.Is4() && len(b) >= header4 && b[0]>>4 == 4:
		proto, size = b[9], int(b[0]&0xf)*4
	case s.to.Is6() && len(b) >= header6 && b[0]>>4 == 6:
		proto = b[6]
	default:
		return false
	}
	if size < header4 || len(b) < size+echoHeader {
		return false
	}
	b = b[size:]
	if proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP {
		return binary.BigEndian.Uint16(b) == s.ID
	}
	return (proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6) && binary.BigEndian.Uint16(b[4:]) == s.ID
}

// describe returns the meaning of an ICMP error.
func describe(v6 bool, kind, code byte) string {
	texts := map[byte]string{0: "network unreachable", 1: "host unreachable", 3: "port unreachable", fragmentationNeeded: "fragmentation needed", 9: "prohibited", 10: "prohibited", 13: "prohibited"}
	switch {
	case v6 && kind == tooBig6:
		return "packet too big"
	case kind == exceeded4 && !v6, kind == exceeded6 && v6:
		return "time to live exceeded"
	case v6:
		texts = map[byte]string{0: "no route", 1: "prohibited", 3: "address unreachable", 4: "port unreachable", 5: "prohibited", 6: "no route"}
	}
	if text := texts[code]; text != "" {
		return text
	}
	return fmt.Sprintf("unreachable (code %d)", code)
}
