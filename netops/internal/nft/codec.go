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

// fieldType is what the package knows of one type.
type fieldType struct {
	// number is nft's number of the data type.
	number uint32
	// size is the length in bytes, without padding. A verdict has the length 0, because
	// it is written as attributes.
	size int
	// interval makes the set an interval set.
	interval bool
	// encode returns the first and the last value that text stands for.
	encode func(text string, size int) (low, high []byte, err error)
	// decode is the inverse of encode. For bytes that encode never makes, it returns a
	// text that encode refuses. It never panics.
	decode func(low, high []byte) string
}

// of returns the type.
func (f Field) of() fieldType {
	return [...]fieldType{
		IfName:       {nftTypeIfName, unix.IFNAMSIZ, false, encodeIfName, ifPatternText},
		IfPattern:    {nftTypeIfName, unix.IFNAMSIZ, true, encodeIfPattern, ifPatternText},
		IfKind:       {nftTypeIfName, unix.IFNAMSIZ, false, encodeIfName, ifPatternText},
		IfGroup:      {nftTypeDevGroup, 4, false, encodeMark, markText},
		IP4Addr:      {nftTypeIP4, 4, false, encodeAddr, addrText},
		IP6Addr:      {nftTypeIP6, 16, false, encodeAddr, addrText},
		IP4Prefix:    {nftTypeIP4, 4, true, encodePrefix, rangeText},
		IP6Prefix:    {nftTypeIP6, 16, true, encodePrefix, rangeText},
		EtherAddr:    {nftTypeEther, 6, false, encodeEther, etherText},
		InetProto:    {nftTypeInetProto, 1, false, encodeProto, protoText},
		InetService:  {nftTypeInetService, 2, false, encodeService, servicesText},
		ServiceRange: {nftTypeInetService, 2, true, encodeServices, servicesText},
		PacketMark:   {nftTypeMark, 4, false, encodeMark, markText},
		Verdict:      {nftTypeVerdict, 0, false, encodeVerdictField, verdictText},
	}[f]
}

// Size returns the field's length in bytes, without padding.
func (f Field) Size() int { return f.of().size }

// padded returns the field's length in a concatenation: a multiple of a 32-bit
// register.
func (f Field) padded() int { return (f.Size() + 3) &^ 3 }

// encode returns the first and the last value that text stands for. They differ
// only for prefixes, interface patterns and ranges of ports.
func (f Field) encode(text string) (low, high []byte, err error) {
	t := f.of()
	low, high, err = t.encode(text, t.size)
	if !t.interval {
		high = low
	}
	return low, high, err
}

// decode is the inverse of encode.
func (f Field) decode(low, high []byte) string {
	t := f.of()
	if len(low) < t.size || len(high) < t.size {
		return ""
	}
	if t.size > 0 {
		low, high = low[:t.size], high[:t.size]
	}
	return t.decode(low, high)
}

func encodeIfName(text string, _ int) (low, high []byte, err error) {
	low, err = EncodeIfName(text)
	return low, nil, err
}

func encodeIfPattern(text string, _ int) (low, high []byte, err error) { return EncodeIfPattern(text) }

func encodeMark(text string, _ int) (low, high []byte, err error) {
	n, err := strconv.ParseUint(text, 0, 32)
	return binary.NativeEndian.AppendUint32(nil, uint32(n)), nil, err
}

func markText(low, _ []byte) string { return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(low)) }

func encodeVerdictField(text string, _ int) (low, high []byte, err error) {
	low, err = encodeVerdict(text)
	return low, nil, err
}

func verdictText(low, _ []byte) string { return VerdictText(low) }

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

func encodeAddr(text string, size int) (low, high []byte, err error) {
	a, err := netip.ParseAddr(text)
	if err == nil && (a.BitLen() != 8*size || a.Zone() != "") {
		err = fmt.Errorf("%q is of the wrong address family", text)
	}
	return a.AsSlice(), nil, err
}

func addrText(low, _ []byte) string { return addrOf(low).String() }

func encodePrefix(text string, size int) (low, high []byte, err error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, nil, err
	}
	if p.Addr().BitLen() != 8*size {
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
func rangeText(low, high []byte) string {
	first, last := addrOf(low), addrOf(high)
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

func encodeService(text string, _ int) (low, high []byte, err error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return binary.BigEndian.AppendUint16(nil, uint16(n)), nil, err
}

// encodeServices returns the first and the last port of a range.
func encodeServices(text string, _ int) (low, high []byte, err error) {
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

// servicesText returns "first-last", or one port.
func servicesText(low, high []byte) string {
	text := strconv.Itoa(int(binary.BigEndian.Uint16(low)))
	if !bytes.Equal(low, high) {
		text += "-" + strconv.Itoa(int(binary.BigEndian.Uint16(high)))
	}
	return text
}

func encodeEther(text string, _ int) (low, high []byte, err error) {
	mac, err := net.ParseMAC(text)
	if err == nil && len(mac) != 6 {
		err = fmt.Errorf("%q is not a MAC address", text)
	}
	return mac, nil, err
}

func etherText(low, _ []byte) string { return net.HardwareAddr(low).String() }

// protocols have a name in nft.
func protocols() []byte {
	return []byte{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}
}

func encodeProto(text string, _ int) (low, high []byte, err error) {
	if n := ProtocolNumber(text); n != 0 {
		return []byte{n}, nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 8)
	return []byte{byte(n)}, nil, err
}

func protoText(low, _ []byte) string { return ProtocolName(low[0]) }

// ProtocolNumber returns the number of a protocol that has a name in nft, otherwise 0.
func ProtocolNumber(name string) byte {
	for _, n := range protocols() {
		if ProtocolName(n) == name {
			return n
		}
	}
	return 0
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
