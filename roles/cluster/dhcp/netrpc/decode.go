package netrpc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
)

const (
	// maxMessage bounds one message. A network configuration has a few kB.
	maxMessage = 1 << 20
	// maxTypes bounds the types that one peer may describe, and maxDescribed the bytes of their
	// descriptions. A field of a description may take one byte, and 24 bytes in memory.
	maxTypes     = 256
	maxDescribed = 64 << 10
	// maxDepth bounds the nesting of values.
	maxDepth = 32
)

var (
	errTooLarge = errors.New("message is too large")
	errMismatch = errors.New("type does not fit")
)

// decoder reads structs from an untrusted peer: sizes, depth and the number of types are
// bounded.
type decoder struct {
	r *bufio.Reader
	// types are the descriptions, by id.
	types map[int64]wireType
	// described counts the bytes of the peer's descriptions.
	described int
	// wireID is the id of wireType itself.
	wireID int64
}

func newDecoder(r *bufio.Reader) (*decoder, error) {
	d := &decoder{r: r, types: map[int64]wireType{}}
	inner := numbering{ids: map[reflect.Type]int{}, next: firstInner}
	id, err := inner.typeID(reflect.TypeFor[wireType](), func(id int, w wireType) error {
		d.types[int64(id)] = w
		return nil
	})
	d.wireID = int64(id)
	return d, err
}

// decode reads the next value into a struct, or skips it if into is nil. At the end of
// the stream, between two values, it returns io.EOF.
func (d *decoder) decode(into any) error {
	for first := true; ; first = false {
		r, err := d.message()
		if err != nil {
			if !first && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		id, err := r.int()
		if err != nil {
			return fmt.Errorf("decode: %w", err)
		}
		if id < 0 {
			if err := d.define(id, r); err != nil {
				return fmt.Errorf("decode type: %w", err)
			}
			continue
		}
		if into == nil {
			return nil
		}
		if err := d.value(r, id, reflect.ValueOf(into).Elem(), 0); err != nil {
			return fmt.Errorf("decode: %w", err)
		}
		return nil
	}
}

// message reads one whole message.
func (d *decoder) message() (*reader, error) {
	head, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}
	raw := []byte{head}
	if head >= 0x80 {
		n := -int(int8(head))
		if n > 8 {
			return nil, errTooLarge
		}
		rest := make([]byte, n)
		if _, err := io.ReadFull(d.r, rest); err != nil {
			return nil, err
		}
		raw = append(raw, rest...)
	}
	size, err := (&reader{raw}).uint()
	if err != nil || size > maxMessage {
		return nil, errTooLarge
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(d.r, b); err != nil {
		return nil, err
	}
	return &reader{b}, nil
}

// define stores the description of a type.
func (d *decoder) define(id int64, r *reader) error {
	d.described += len(r.b)
	if id == math.MinInt64 || -id < firstUser || len(d.types) > maxTypes || d.described > maxDescribed {
		return errTooLarge
	}
	if _, ok := d.types[-id]; ok {
		return fmt.Errorf("type %d again: %w", -id, errMismatch)
	}
	var w wireType
	if err := d.value(r, d.wireID, reflect.ValueOf(&w).Elem(), 0); err != nil {
		return err
	}
	d.types[-id] = w
	return nil
}

// value decodes a value of a type into v, or skips it if v is not valid.
func (d *decoder) value(r *reader, id int64, v reflect.Value, depth int) error {
	if depth > maxDepth {
		return errTooLarge
	}
	v = settable(v)
	switch id {
	case idBool, idInt, idUint, idFloat, idBytes, idString, idComplex:
		return basic(r, id, v)
	case idInterface:
		return errMismatch
	}
	w := d.types[id]
	switch {
	case w.StructT != nil:
		return d.structure(r, w.StructT, v, depth)
	case w.SliceT != nil:
		return d.list(r, w.SliceT.Elem, v, depth)
	case w.ArrayT != nil:
		return d.list(r, w.ArrayT.Elem, v, depth)
	case w.MapT != nil:
		return d.pairs(r, w.MapT, v, depth)
	case w.GobEncoderT != nil, w.BinaryMarshalerT != nil, w.TextMarshalerT != nil:
		return basic(r, idBytes, reflect.Value{})
	}
	return fmt.Errorf("type %d is not described: %w", id, errMismatch)
}

// settable follows pointers. It allocates the value of a nil pointer.
func settable(v reflect.Value) reflect.Value {
	for v.IsValid() && v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}

func (d *decoder) structure(r *reader, s *structType, v reflect.Value, depth int) error {
	if v.IsValid() && v.Kind() != reflect.Struct {
		return fmt.Errorf("%s is not a struct: %w", v.Type(), errMismatch)
	}
	for at := uint64(0); ; {
		delta, err := r.uint()
		if err != nil || delta == 0 {
			return err
		}
		at += delta
		if delta > uint64(len(s.Field)) || at > uint64(len(s.Field)) {
			return fmt.Errorf("field %d of %q: %w", at, s.CommonType.Name, errMismatch)
		}
		f := s.Field[at-1]
		var into reflect.Value
		if v.IsValid() {
			into = v.FieldByName(f.Name)
		}
		if into.IsValid() && !into.CanSet() {
			into = reflect.Value{}
		}
		if err := d.value(r, int64(f.ID), into, depth+1); err != nil {
			return err
		}
	}
}

func (d *decoder) list(r *reader, elem int, v reflect.Value, depth int) error {
	n, err := r.count()
	if err != nil {
		return err
	}
	if v.IsValid() && v.Kind() != reflect.Slice {
		return fmt.Errorf("%s is not a list: %w", v.Type(), errMismatch)
	}
	for range n {
		var into reflect.Value
		if v.IsValid() {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			into = v.Index(v.Len() - 1)
		}
		if err := d.value(r, int64(elem), into, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// pairs skips a map, which the protocol does not use.
func (d *decoder) pairs(r *reader, m *mapType, v reflect.Value, depth int) error {
	if v.IsValid() {
		return fmt.Errorf("%s is sent as a map: %w", v.Type(), errMismatch)
	}
	n, err := r.count()
	for i := 0; i < n && err == nil; i++ {
		if err = d.value(r, int64(m.Key), v, depth+1); err == nil {
			err = d.value(r, int64(m.Elem), v, depth+1)
		}
	}
	return err
}

// basic decodes a value of one of gob's basic types.
func basic(r *reader, id int64, v reflect.Value) error {
	if v.IsValid() && int64(basicID(v.Type())) != id {
		return fmt.Errorf("%s: %w", v.Type(), errMismatch)
	}
	switch id {
	case idInt:
		n, err := r.int()
		if err == nil && v.IsValid() {
			v.SetInt(n)
		}
		return err
	case idBytes, idString:
		b, err := r.bytes()
		if err != nil || !v.IsValid() {
			return err
		}
		if id == idString {
			v.SetString(string(b))
		} else {
			v.SetBytes(append([]byte(nil), b...))
		}
		return nil
	}
	n, err := r.uint()
	if err == nil && id == idComplex {
		_, err = r.uint()
	}
	if err != nil || !v.IsValid() {
		return err
	}
	if id == idBool {
		v.SetBool(n != 0)
	} else {
		v.SetUint(n)
	}
	return nil
}
