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

// Field is the type of one field of a set's key or a map's data, named after
// Client's data types. Its text is what Element.Key and Element.Value hold.
type Field uint8

const (
	IfName      Field = iota // "cni0"
	IfPattern                // "cni0", or "veth*" for every name that begins so: makes the set an interval set
	IP4Addr                  // "10.0.0.1"
	IP6Addr                  // "fd00::1"
	IP4Prefix                // "10.22.0.0/16": likewise
	IP6Prefix                // "fd00::/64": likewise
	EtherAddr                // "02:00:00:00:00:01"
	InetProto                // "tcp", or its number
	InetService              // "8080"
	PacketMark               // "0x2000"
	Verdict                  // "accept", "drop", "return", "jump NAME", "goto NAME"
)

// Client's numbers for its data types: how `nft list` knows what to print.
// See include/datatype.h of nftables.
const (
	nftTypeIP4         = 7
	nftTypeIP6         = 8
	nftTypeEther       = 9
	nftTypeInetProto   = 12
	nftTypeInetService = 13
	nftTypeMark        = 19
	nftTypeIfName      = 41
	// nftTypeVerdict is NFT_DATA_VERDICT.
	nftTypeVerdict = 0xffffff00
	// nftTypeBits is how far concatenated type numbers are shifted.
	nftTypeBits = 6
)

// isPrefix tells whether the field makes its set an interval set.
func (f Field) isPrefix() bool { return f == IP4Prefix || f == IP6Prefix || f == IfPattern }

// number is nft's number of the data type.
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
	case InetService:
		return nftTypeInetService
	case PacketMark:
		return nftTypeMark
	case IfName, IfPattern:
		return nftTypeIfName
	default:
		return nftTypeVerdict
	}
}

// Size is the field's length in bytes, without padding. A verdict has none:
// it is written as attributes.
func (f Field) Size() int {
	switch f {
	case IfName, IfPattern:
		return unix.IFNAMSIZ
	case IP6Addr, IP6Prefix:
		return 16
	case EtherAddr:
		return 6
	case InetService:
		return 2
	case InetProto:
		return 1
	case Verdict:
		return 0
	default:
		return 4
	}
}

// padded is the field's length in a concatenation: whole 32-bit registers.
func (f Field) padded() int { return (f.Size() + 3) &^ 3 }

// encode gives the first and the last value that text stands for; they differ
// for prefixes only.
func (f Field) encode(text string) (low, high []byte, err error) {
	switch f {
	case IfName:
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
	case PacketMark:
		var n uint64
		n, err = strconv.ParseUint(text, 0, 32)
		low = binary.NativeEndian.AppendUint32(nil, uint32(n))
	default:
		low, err = encodeVerdict(text)
	}
	return low, low, err
}

// decode is the inverse of encode. Bytes that encode would not make give a
// text that encode refuses, never a panic.
func (f Field) decode(low, high []byte) string {
	if len(low) < f.Size() || len(high) < f.Size() {
		return ""
	}
	switch f {
	case IfName:
		return nlconn.Printable(nlconn.UntilNUL(low[:unix.IFNAMSIZ]))
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
	case PacketMark:
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(low))
	default:
		return VerdictText(low)
	}
}

// EncodeIfName is an interface name as the kernel compares it.
func EncodeIfName(text string) ([]byte, error) {
	if text == "" || len(text) >= unix.IFNAMSIZ || strings.ContainsFunc(text, badInIfName) {
		return nil, fmt.Errorf("%q is no interface name", text)
	}
	return append([]byte(text), make([]byte, unix.IFNAMSIZ-len(text))...), nil
}

// EncodeIfPattern gives the first and the last name that a pattern stands for.
// The kernel allows a '*' in names; nft and so we do not.
func EncodeIfPattern(text string) (low, high []byte, err error) {
	begin, isPattern := strings.CutSuffix(text, "*")
	if strings.Contains(begin, "*") {
		return nil, nil, fmt.Errorf("%q is no interface name or pattern: one '*', at the end", text)
	}
	if low, err = EncodeIfName(begin); err != nil || !isPattern {
		return low, low, err
	}
	return low, append([]byte(begin), bytes.Repeat([]byte{0xff}, unix.IFNAMSIZ-len(begin))...), nil
}

// ifPatternText is the inverse of EncodeIfPattern.
func ifPatternText(low, high []byte) string {
	text := nlconn.Printable(nlconn.UntilNUL(low))
	if bytes.Equal(low, high) {
		return text
	}
	return text + "*"
}

// badInIfName follows the kernel's dev_valid_name, and refuses what could not
// be shown as it is.
func badInIfName(r rune) bool {
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

// lastOf is the last address of the prefix that begins with first.
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

// rangeText is a prefix where the range is one, else "first-last".
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

func encodeEther(text string) ([]byte, error) {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil, err
	}
	if len(mac) != 6 {
		return nil, fmt.Errorf("%q is no Ethernet address", text)
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

// ProtocolName is what nft calls a protocol (IPPROTO_*), else its number.
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
