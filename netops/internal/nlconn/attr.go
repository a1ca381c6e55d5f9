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
			return fmt.Errorf("netlink attribute of %d bytes in %d: %w", size, len(b), ErrDamaged)
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

// Long returns the value of a 64-bit attribute, or 0 if v is shorter.
func Long(v []byte) uint64 {
	if len(v) < 8 {
		return 0
	}
	return binary.NativeEndian.Uint64(v)
}

// Short returns the value of a 16-bit attribute, or 0 if v is shorter.
func Short(v []byte) int {
	if len(v) < 2 {
		return 0
	}
	return int(binary.NativeEndian.Uint16(v))
}

// Net32 returns the value of a 32-bit attribute in network byte order, or 0 if v is
// shorter.
func Net32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
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

// Find returns the value of a nested attribute: path has the kinds from the outer
// attribute to the inner. It returns nil if the attribute is absent.
func Find(b []byte, path ...uint16) ([]byte, error) {
	for _, want := range path {
		var found []byte
		err := EachAttr(b, func(kind uint16, v []byte) error {
			if kind == want && found == nil {
				found = v
			}
			return nil
		})
		if err != nil || found == nil {
			return nil, err
		}
		b = found
	}
	return b, nil
}

// Body is the body of a message: the header of its protocol and then attributes,
// which the methods append with their padding.
type Body []byte

// Bytes appends an attribute.
func (b *Body) Bytes(kind uint16, v []byte) {
	b.attr(kind, len(v))
	*b = append(*b, v...)
	b.pad()
}

// Text appends a text and a NUL.
func (b *Body) Text(kind uint16, v string) {
	b.attr(kind, len(v)+1)
	*b = append(append(*b, v...), 0)
	b.pad()
}

// Bool appends a byte that is 1 or 0.
func (b *Body) Bool(kind uint16, v bool) {
	if v {
		b.Uint8(kind, 1)
	} else {
		b.Uint8(kind, 0)
	}
}

// Uint8 appends a byte.
func (b *Body) Uint8(kind uint16, v uint8) {
	b.attr(kind, 1)
	*b = append(*b, v, 0, 0, 0)
}

// Uint16 appends a number in the byte order of the host.
func (b *Body) Uint16(kind, v uint16) {
	b.attr(kind, 2)
	*b = append(binary.NativeEndian.AppendUint16(*b, v), 0, 0)
}

// Uint32 appends a number in the byte order of the host.
func (b *Body) Uint32(kind uint16, v uint32) {
	b.attr(kind, 4)
	*b = binary.NativeEndian.AppendUint32(*b, v)
}

// Net16 appends a number in network byte order.
func (b *Body) Net16(kind, v uint16) {
	b.attr(kind, 2)
	*b = append(binary.BigEndian.AppendUint16(*b, v), 0, 0)
}

// Net32 appends a number in network byte order.
func (b *Body) Net32(kind uint16, v uint32) {
	b.attr(kind, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

// Nest appends an attribute that contains what fill appends.
func (b *Body) Nest(kind uint16, fill func()) {
	start := len(*b)
	b.attr(kind|unix.NLA_F_NESTED, 0)
	fill()
	binary.NativeEndian.PutUint16((*b)[start:], attrSize(len(*b)-start))
}

// attr appends the header of an attribute with size bytes.
func (b *Body) attr(kind uint16, size int) {
	*b = binary.NativeEndian.AppendUint16(*b, attrSize(unix.SizeofRtAttr+size))
	*b = binary.NativeEndian.AppendUint16(*b, kind)
}

// attrSize returns the length of an attribute as the header has it. A longer
// attribute is an error of the program: the kernel would read its rest as other
// attributes.
func attrSize(n int) uint16 {
	if n > 1<<16-1 {
		panic(fmt.Sprintf("netlink attribute of %d bytes", n))
	}
	return uint16(n)
}

func (b *Body) pad() {
	for len(*b)%unix.RTA_ALIGNTO != 0 {
		*b = append(*b, 0)
	}
}
