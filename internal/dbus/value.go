package dbus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// Value is an argument, or a property that was read. What is in an array of
// structures is not looked at: it can be compared, and handed on to a method that
// takes the same.
type Value struct {
	signature string
	text      string
	number    uint32
	// elements are an array's, from a multiple of 8 bytes on.
	elements []byte
}

// Text is an argument of type s.
func Text(s string) Value { return Value{signature: "s", text: s} }

// Number is an argument of type i.
func Number(n int32) Value { return Value{signature: "i", number: uint32(n)} }

// Signature is the value's type, as D-Bus writes it.
func (v Value) Signature() string { return v.signature }

// IsEmpty tells whether it is an array without elements.
func (v Value) IsEmpty() bool { return v.isArray() && len(v.elements) == 0 }

// Equal tells whether both are the same.
func (v Value) Equal(o Value) bool {
	return v.signature == o.signature && v.text == o.text && v.number == o.number && bytes.Equal(v.elements, o.elements)
}

func (v Value) isArray() bool { return strings.HasPrefix(v.signature, "a(") }

// value appends an argument.
func (w *writer) value(v Value) {
	switch {
	case v.signature == "s":
		w.text(v.text)
	case v.isArray():
		w.number(uint32(len(v.elements)))
		w.align(8)
		*w = append(*w, v.elements...)
	default:
		w.number(v.number)
	}
}

// variant reads a value behind its type.
func (r *reader) variant(v *Value) error {
	if err := r.signature(&v.signature); err != nil {
		return err
	}
	switch {
	case v.signature == "s":
		return r.text(&v.text)
	case v.signature == "b" || v.signature == "i" || v.signature == "u":
		return r.number(&v.number)
	case !v.isArray():
		return fmt.Errorf("property of type %q: %w", v.signature, ErrProtocol)
	case r.order != binary.LittleEndian: // what is in it would be handed on the wrong way round
		return fmt.Errorf("property of type %q in big-endian: %w", v.signature, ErrProtocol)
	}
	var n uint32
	if err := r.number(&n); err != nil {
		return err
	}
	if err := r.align(8); err != nil {
		return err
	}
	if int64(n) > int64(len(r.data)) {
		return fmt.Errorf("array of %d bytes: %w", n, ErrProtocol)
	}
	b, err := r.take(int(n))
	v.elements = bytes.Clone(b)
	return err
}
