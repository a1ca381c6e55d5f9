package netrpc

import (
	"fmt"
	"io"
	"reflect"
)

// encoder writes structs. It describes each type before its first value.
type encoder struct {
	w     io.Writer
	types numbering
}

func newEncoder(w io.Writer) *encoder {
	return &encoder{w: w, types: numbering{ids: map[reflect.Type]int{}, next: firstUser + 1}}
}

// encode writes values, each a struct or a pointer to a struct, in one write.
func (e *encoder) encode(values ...any) error {
	var out []byte
	for _, v := range values {
		rv := reflect.Indirect(reflect.ValueOf(v))
		id, err := e.types.typeID(rv.Type(), func(id int, w wireType) error {
			def, err := appendValue(appendInt(nil, -int64(id)), reflect.ValueOf(w))
			out = appendMessage(out, def)
			return err
		})
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		body, err := appendValue(appendInt(nil, int64(id)), rv)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		out = appendMessage(out, body)
	}
	_, err := e.w.Write(out)
	return err
}

func appendMessage(b, message []byte) []byte {
	return append(appendUint(b, uint64(len(message))), message...)
}

// appendValue appends a value without its type's id.
func appendValue(b []byte, v reflect.Value) ([]byte, error) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return b, fmt.Errorf("nil in a list: %w", errType)
		}
		v = v.Elem()
	}
	switch basicID(v.Type()) {
	case idBool:
		if v.Bool() {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case idInt:
		return appendInt(b, v.Int()), nil
	case idUint:
		return appendUint(b, v.Uint()), nil
	case idString:
		return append(appendUint(b, uint64(v.Len())), v.String()...), nil
	case idBytes:
		return append(appendUint(b, uint64(v.Len())), v.Bytes()...), nil
	}
	var err error
	switch v.Kind() {
	case reflect.Slice:
		b = appendUint(b, uint64(v.Len()))
		for i := range v.Len() {
			if b, err = appendValue(b, v.Index(i)); err != nil {
				return b, err
			}
		}
		return b, nil
	case reflect.Struct:
		return appendStruct(b, v)
	}
	return b, fmt.Errorf("%s: %w", v.Type(), errType)
}

// appendStruct appends the fields that are set, each behind its distance to the previous
// one, and a 0.
func appendStruct(b []byte, v reflect.Value) ([]byte, error) {
	last := -1
	for i := range v.NumField() {
		f := v.Field(i)
		if isUnset(f) {
			continue
		}
		b = appendUint(b, uint64(i-last))
		last = i
		var err error
		if b, err = appendValue(b, f); err != nil {
			return b, err
		}
	}
	return append(b, 0), nil
}

// isUnset reports whether gob leaves a field out.
func isUnset(v reflect.Value) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.Slice {
		return v.Len() == 0
	}
	return v.IsZero()
}
