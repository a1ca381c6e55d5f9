package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Field is the type of one field of a set's key or a map's data. The names follow
// nft's data types. Element.Key and Element.Value hold fields as text.
type Field uint8

// The field types, each with examples of its text.
const (
	IfName       Field = iota // "cni0"
	IfPattern                 // "cni0", or "veth*" for every name with this prefix; makes the set an interval set
	IfKind                    // "veth": what RTM_NEWLINK calls the kind
	IfGroup                   // "0x656e69": the group of a device
	IP4Addr                   // "10.0.0.1"
	IP6Addr                   // "fd00::1"
	IP4Prefix                 // "10.22.0.0/16"; makes the set an interval set
	IP6Prefix                 // "fd00::/64"; makes the set an interval set
	EtherAddr                 // "02:00:00:00:00:01"
	InetProto                 // "tcp", or its number
	InetService               // "8080"
	ServiceRange              // "8000-8100", or "8080"; makes the set an interval set
	PacketMark                // "0x2000"
	Verdict                   // "accept", "drop", "return", "jump NAME", "goto NAME"
)

// nft's numbers of its data types. `nft list` uses them to choose the output
// format. See include/datatype.h of nftables.
const (
	nftTypeIP4         = 7
	nftTypeIP6         = 8
	nftTypeEther       = 9
	nftTypeInetProto   = 12
	nftTypeInetService = 13
	nftTypeMark        = 19
	nftTypeDevGroup    = 35
	nftTypeIfName      = 41
	// nftTypeVerdict is NFT_DATA_VERDICT.
	nftTypeVerdict = 0xffffff00
	// nftTypeBits is the number of bits of each type number in a concatenation.
	nftTypeBits = 6
)

// isPrefix reports whether the field makes its set an interval set.
func (f Field) isPrefix() bool {
	return f == IP4Prefix || f == IP6Prefix || f == IfPattern || f == ServiceRange
}

// number returns nft's number of the data type.
func (f Field) number() uint32 {
	switch f {
	case IP4Addr, IP4Prefix:
		return nftTypeIP4
	case IP6Addr, IP6Prefix:
		return nftTypeIP6
	case EtherAddr:
		return nftTypeEther
	case InetProto:
		return nftTypeInetProto
	case InetService, ServiceRange:
		return nftTypeInetService
	case PacketMark:
		return nftTypeMark
	case IfGroup:
		return nftTypeDevGroup
	case IfName, IfPattern, IfKind:
		return nftTypeIfName
	default:
		return nftTypeVerdict
	}
}

// Size returns the field's length in bytes, without padding. A verdict has the
// length 0, because it is written as attributes.
func (f Field) Size() int {
	switch f {
	case IfName, IfPattern, IfKind:
		return unix.IFNAMSIZ
	case IP6Addr, IP6Prefix:
		return 16
	case EtherAddr:
		return 6
	case InetService, ServiceRange:
		return 2
	case InetProto:
		return 1
	case Verdict:
		return 0
	default:
		return 4
	}
}

// padded returns the field's length in a concatenation: a multiple of a 32-bit
// register.
func (f Field) padded() int { return (f.Size() + 3) &^ 3 }

// encode returns the first and the last value that text stands for. They differ
// only for prefixes, interface patterns and ranges of ports.
func (f Field) encode(text string) (low, high []byte, err error) {
	switch f {
	case IfName, IfKind:
		low, err = EncodeIfName(text)
	case IfPattern:
		return EncodeIfPattern(text)
	case IP4Addr, IP6Addr:
		low, err = f.encodeAddr(text)
	case IP4Prefix, IP6Prefix:
		return f.encodePrefix(text)
	case EtherAddr:
		low, err = encodeEther(text)
	case InetProto:
		low, err = encodeProto(text)
	case InetService:
		var n uint64
		n, err = strconv.ParseUint(text, 10, 16)
		low = binary.BigEndian.AppendUint16(nil, uint16(n))
	case ServiceRange:
		return encodeServices(text)
	case PacketMark, IfGroup:
		var n uint64
		n, err = strconv.ParseUint(text, 0, 32)
		low = binary.NativeEndian.AppendUint32(nil, uint32(n))
	default:
		low, err = encodeVerdict(text)
	}
	return low, low, err
}

// decode is the inverse of encode. For bytes that encode never makes, it returns
// a text that encode refuses. It never panics.
func (f Field) decode(low, high []byte) string {
	if len(low) < f.Size() || len(high) < f.Size() {
		return ""
	}
	switch f {
	case IfName, IfKind:
		return nlconn.Printable(nlconn.Text(low[:unix.IFNAMSIZ]))
	case IfPattern:
		return ifPatternText(low[:unix.IFNAMSIZ], high[:unix.IFNAMSIZ])
	case IP4Addr, IP6Addr:
		return addrOf(low[:f.Size()]).String()
	case IP4Prefix, IP6Prefix:
		return rangeText(addrOf(low[:f.Size()]), addrOf(high[:f.Size()]))
	case EtherAddr:
		return net.HardwareAddr(low[:6]).String()
	case InetProto:
		return ProtocolName(low[0])
	case InetService:
		return strconv.Itoa(int(binary.BigEndian.Uint16(low)))
	case ServiceRange:
		text := strconv.Itoa(int(binary.BigEndian.Uint16(low)))
		if last := strconv.Itoa(int(binary.BigEndian.Uint16(high))); last != text {
			text += "-" + last
		}
		return text
	case PacketMark, IfGroup:
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(low))
	default:
		return VerdictText(low)
	}
}

// EncodeIfName returns an interface name in the kernel's form: padded with NULs
// to IFNAMSIZ bytes.
func EncodeIfName(text string) ([]byte, error) {
	if text == "" || len(text) >= unix.IFNAMSIZ || strings.ContainsFunc(text, isInvalidInIfName) {
		return nil, fmt.Errorf("%q is not an interface name", text)
	}
	return append([]byte(text), make([]byte, unix.IFNAMSIZ-len(text))...), nil
}

// EncodeIfPattern returns the first and the last name that a pattern matches. The
// kernel allows '*' in interface names. nft and cnibox do not.
func EncodeIfPattern(text string) (low, high []byte, err error) {
	begin, isPattern := strings.CutSuffix(text, "*")
	if strings.Contains(begin, "*") {
		return nil, nil, fmt.Errorf("%q is not an interface name or pattern: use at most one '*', at the end", text)
	}
	if low, err = EncodeIfName(begin); err != nil || !isPattern {
		return low, low, err
	}
	return low, append([]byte(begin), bytes.Repeat([]byte{0xff}, unix.IFNAMSIZ-len(begin))...), nil
}

// ifPatternText is the inverse of EncodeIfPattern.
func ifPatternText(low, high []byte) string {
	text := nlconn.Printable(nlconn.Text(low))
	if bytes.Equal(low, high) {
		return text
	}
	return text + "*"
}

// isInvalidInIfName reports whether a rune is not allowed in an interface name. It
// follows the kernel's dev_valid_name, and also refuses runes that cannot be
// printed unchanged.
func isInvalidInIfName(r rune) bool {
	return unicode.IsSpace(r) || r == '/' || r == ':' || nlconn.IsHostile(r)
}

func (f Field) encodeAddr(text string) ([]byte, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return nil, err
	}
	if a.BitLen() != 8*f.Size() || a.Zone() != "" {
		return nil, fmt.Errorf("%q is of the wrong address family", text)
	}
	return a.AsSlice(), nil
}

func (f Field) encodePrefix(text string) (low, high []byte, err error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, nil, err
	}
	if p.Addr().BitLen() != 8*f.Size() {
		return nil, nil, fmt.Errorf("%q is of the wrong address family", text)
	}
	low = p.Masked().Addr().AsSlice()
	return low, lastOf(low, p.Bits()), nil
}

// lastOf returns the last address of the prefix that begins with first.
func lastOf(first []byte, length int) []byte {
	last := bytes.Clone(first)
	for i := range last {
		if free := 8*(i+1) - length; free > 0 {
			last[i] |= byte(1<<min(free, 8) - 1)
		}
	}
	return last
}

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// rangeText returns a range as a prefix if it is one, otherwise as "first-last".
func rangeText(first, last netip.Addr) string {
	length := first.BitLen()
	for i, b := range first.AsSlice() {
		if d := b ^ last.AsSlice()[i]; d != 0 {
			length = 8*i + bits.LeadingZeros8(d)
			break
		}
	}
	p := netip.PrefixFrom(first, length)
	if p.Masked() != p || !bytes.Equal(lastOf(first.AsSlice(), length), last.AsSlice()) {
		return first.String() + "-" + last.String()
	}
	return p.String()
}

// encodeServices returns the first and the last port of a range.
func encodeServices(text string) (low, high []byte, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return nil, nil, err
	}
	to, err := strconv.ParseUint(last, 10, 16)
	if err == nil && to < from {
		err = fmt.Errorf("%q is not a range of ports", text)
	}
	return binary.BigEndian.AppendUint16(nil, uint16(from)), binary.BigEndian.AppendUint16(nil, uint16(to)), err
}

func encodeEther(text string) ([]byte, error) {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil, err
	}
	if len(mac) != 6 {
		return nil, fmt.Errorf("%q is not a MAC address", text)
	}
	return mac, nil
}

func encodeProto(text string) ([]byte, error) {
	switch text {
	case "icmp":
		return []byte{unix.IPPROTO_ICMP}, nil
	case "tcp":
		return []byte{unix.IPPROTO_TCP}, nil
	case "udp":
		return []byte{unix.IPPROTO_UDP}, nil
	case "sctp":
		return []byte{unix.IPPROTO_SCTP}, nil
	}
	n, err := strconv.ParseUint(text, 10, 8)
	return []byte{byte(n)}, err
}

// ProtocolName returns nft's name of a protocol (IPPROTO_*), or its number.
func ProtocolName(n byte) string {
	switch n {
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}
