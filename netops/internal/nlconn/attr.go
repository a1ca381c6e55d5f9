package nlconn

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// EachAttr calls f for each attribute in b. The kind is passed without the flag
// bits (NLA_F_NESTED, NLA_F_NET_BYTEORDER). The parser of the netlink library is
// not used: it panics if the last attribute has no padding.
func EachAttr(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return fmt.Errorf("netlink attribute of %d bytes in %d: %w", size, len(b), unix.EBADMSG)
		}
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if err := f(kind, b[unix.SizeofRtAttr:size]); err != nil {
			return err
		}
		b = b[min((size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return nil
}

// Int returns the value of a 32-bit attribute, or 0 if v is shorter.
func Int(v []byte) int {
	if len(v) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(v))
}

// Short returns the value of a 16-bit attribute, or 0 if v is shorter.
func Short(v []byte) int {
	if len(v) < 2 {
		return 0
	}
	return int(binary.NativeEndian.Uint16(v))
}

// Byte returns the first byte of an attribute, or 0 if v is empty.
func Byte(v []byte) uint8 {
	if len(v) < 1 {
		return 0
	}
	return v[0]
}

// Text returns the value of a text attribute. A NUL at its end is optional.
func Text(v []byte) string {
	text, _, _ := bytes.Cut(v, []byte{0})
	return string(text)
}

// AppendAttr appends an attribute and its padding to b.
func AppendAttr(b []byte, kind uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, v...)
	for len(b)%unix.RTA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// AppendUint32 appends a 32-bit attribute to b.
func AppendUint32(b []byte, kind uint16, v uint32) []byte {
	return AppendAttr(b, kind, binary.NativeEndian.AppendUint32(nil, v))
}
