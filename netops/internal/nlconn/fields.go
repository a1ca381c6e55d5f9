package nlconn

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Attr is an attribute of a message and the variable with its value. Body.Attrs encodes and
// ReadAttrs decodes, so that one list describes both directions.
type Attr struct {
	Kind uint16
	// At points to the value: a *uint8, *uint16, *uint32, *uint64, *int (32 bits), *int32,
	// *bool (a byte), *Flag, *BigEndian16, *BigEndian32, *BigEndian64, *string, *[]byte, *netip.Addr, *net.HardwareAddr, or a
	// **bool or **uint32 that is nil for an absent attribute. A []Attr has nested attributes.
	// A func([]byte) error decodes the attribute, which is not encoded.
	At any
	// Zero encodes the attribute even if its value is zero.
	Zero bool
}

// Flag is true if an attribute without a value is present.
type Flag bool

// Numbers in network byte order.
type (
	// BigEndian16 has two bytes.
	BigEndian16 uint16
	// BigEndian32 has four bytes.
	BigEndian32 uint32
	// BigEndian64 has eight bytes.
	BigEndian64 uint64
)

// ReadAttrs decodes the listed attributes of b and ignores others. A number whose attribute is too
// short becomes 0. Only a *[]byte is a slice of b.
func ReadAttrs(b []byte, attrs []Attr) error {
	return EachAttr(b, func(kind uint16, v []byte) error {
		for i := range attrs {
			if attrs[i].Kind == kind {
				return attrs[i].read(v)
			}
		}
		return nil
	})
}

func (a *Attr) read(v []byte) error {
	switch to := a.At.(type) {
	case *uint8:
		*to = Byte(v)
	case *uint16:
		*to = uint16(Short(v))
	case *uint32:
		*to = uint32(Int(v))
	case *uint64:
		*to = Long(v)
	case *int:
		*to = Int(v)
	case *int32:
		*to = int32(Int(v))
	case *bool:
		*to = Byte(v) != 0
	case **bool:
		on := Byte(v) != 0
		*to = &on
	case **uint32:
		n := uint32(Int(v))
		*to = &n
	case *Flag:
		*to = true
	case *BigEndian16:
		if len(v) >= 2 {
			*to = BigEndian16(binary.BigEndian.Uint16(v))
		}
	case *BigEndian32:
		*to = BigEndian32(Net32(v))
	case *BigEndian64:
		if len(v) >= 8 {
			*to = BigEndian64(binary.BigEndian.Uint64(v))
		}
	case *string:
		*to = Text(v)
	case *[]byte:
		*to = v
	case *netip.Addr:
		*to, _ = netip.AddrFromSlice(v)
	case *net.HardwareAddr:
		*to = append(net.HardwareAddr(nil), v...)
	case []Attr:
		return ReadAttrs(v, to)
	case func([]byte) error:
		return to(v)
	}
	return nil
}

// Attrs appends the attributes whose value is not zero.
func (b *Body) Attrs(attrs []Attr) {
	for i := range attrs {
		attrs[i].append(b)
	}
}

func (a *Attr) append(b *Body) {
	switch from := a.At.(type) {
	case *uint8:
		if *from != 0 || a.Zero {
			b.Uint8(a.Kind, *from)
		}
	case *uint16:
		if *from != 0 || a.Zero {
			b.Uint16(a.Kind, *from)
		}
	case *uint32:
		a.append32(b, *from)
	case *int:
		a.append32(b, uint32(*from))
	case *int32:
		a.append32(b, uint32(*from))
	case *bool:
		if *from || a.Zero {
			b.Bool(a.Kind, *from)
		}
	case **bool:
		if *from != nil {
			b.Bool(a.Kind, **from)
		}
	case **uint32:
		if *from != nil {
			b.Uint32(a.Kind, **from)
		}
	case *Flag:
		if *from {
			b.Bytes(a.Kind, nil)
		}
	case *BigEndian16:
		if *from != 0 || a.Zero {
			b.Net16(a.Kind, uint16(*from))
		}
	case *BigEndian32:
		if *from != 0 || a.Zero {
			b.Net32(a.Kind, uint32(*from))
		}
	case *BigEndian64:
		if *from != 0 || a.Zero {
			a.appendBytes(b, binary.BigEndian.AppendUint64(nil, uint64(*from)))
		}
	case *string:
		if *from != "" {
			b.Text(a.Kind, *from)
		}
	case *[]byte:
		a.appendBytes(b, *from)
	case *netip.Addr:
		a.appendAddr(b, *from)
	case *net.HardwareAddr:
		a.appendBytes(b, *from)
	case []Attr:
		a.appendNested(b, from)
	}
}

func (a *Attr) append32(b *Body, v uint32) {
	if v != 0 || a.Zero {
		b.Uint32(a.Kind, v)
	}
}

func (a *Attr) appendBytes(b *Body, v []byte) {
	if len(v) > 0 || a.Zero {
		b.Bytes(a.Kind, v)
	}
}

// appendAddr appends an address without an allocation.
func (a *Attr) appendAddr(b *Body, v netip.Addr) {
	switch {
	case v.Is4():
		raw := v.As4()
		b.Bytes(a.Kind, raw[:])
	case v.IsValid():
		raw := v.As16()
		b.Bytes(a.Kind, raw[:])
	}
}

// appendNested appends an attribute with others in it, unless these are all left out.
func (a *Attr) appendNested(b *Body, attrs []Attr) {
	start := len(*b)
	empty := false
	b.Nest(a.Kind, func() {
		before := len(*b)
		b.Attrs(attrs)
		empty = len(*b) == before
	})
	if empty && !a.Zero {
		*b = (*b)[:start]
	}
}
