package coldjson

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Marshal returns the same as [json.Marshal].
func Marshal(v any) ([]byte, error) {
	b, err := appendValue(make([]byte, 0, 512), reflect.ValueOf(v), 0)
	if err != nil {
		return json.Marshal(v)
	}
	return b, nil
}

// appendValue appends the JSON of a value. An error means that encoding/json
// must encode the value.
func appendValue(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if depth > maxDepth || !v.IsValid() {
		return nil, errNotPlain
	}
	t := v.Type()
	if hasMethods(t) {
		if out, ok, err := appendOwn(b, v, t); ok || err != nil {
			return out, err
		}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(b, "null"...), nil
		}
		if v.Kind() == reflect.Pointer && hasMethods(t.Elem()) {
			if out, ok, err := appendMethod(b, v); ok || err != nil {
				return out, err
			}
		}
		return appendValue(b, v.Elem(), depth+1)
	case reflect.Struct:
		return appendStruct(b, v, t, depth)
	case reflect.Slice:
		if v.IsNil() {
			return append(b, "null"...), nil
		}
		return appendList(b, v, t, depth)
	case reflect.Map:
		return appendMap(b, v, t, depth)
	case reflect.String:
		return appendString(b, v.String()), nil
	case reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	}
	return nil, errNotPlain
}

// appendOwn encodes a value of a named type with its MarshalJSON or MarshalText. It reports whether
// there is one.
func appendOwn(b []byte, v reflect.Value, t reflect.Type) ([]byte, bool, error) {
	if t == reflect.TypeFor[json.RawMessage]() {
		raw := v.Bytes()
		if raw == nil {
			return append(b, "null"...), true, nil
		}
		b, err := appendCompact(b, raw)
		return b, true, err
	}
	if t == reflect.TypeFor[time.Time]() && v.CanInterface() {
		out, err := v.Interface().(time.Time).AppendText(append(b, '"'))
		return append(out, '"'), true, err
	}
	if v.CanAddr() && v.Kind() != reflect.Interface {
		return appendMethod(b, v.Addr())
	}
	return appendMethod(b, v)
}

// appendMethod encodes a value with its MarshalJSON or MarshalText. It reports whether there is one.
func appendMethod(b []byte, v reflect.Value) ([]byte, bool, error) {
	t := v.Type()
	if t.NumMethod() == 0 || v.Kind() == reflect.Interface || !v.CanInterface() {
		return nil, false, nil
	}
	switch {
	case t.Implements(reflect.TypeFor[json.Marshaler]()):
		raw, err := marshalJSON(v.Interface())
		if err == nil {
			b, err = appendCompact(b, raw)
		}
		return b, true, err
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		text, err := marshalText(v.Interface())
		return appendString(b, string(text)), true, err
	}
	return nil, false, nil
}

// marshalJSON calls the MarshalJSON method. The method of time.Time, which
// every record has, is called directly.
func marshalJSON(m any) ([]byte, error) {
	if t, ok := m.(*time.Time); ok {
		return t.MarshalJSON()
	}
	return m.(json.Marshaler).MarshalJSON()
}

// marshalText calls the MarshalText method. The method of netip.Prefix is
// called directly.
func marshalText(m any) ([]byte, error) {
	if p, ok := m.(*netip.Prefix); ok {
		return p.MarshalText()
	}
	return m.(encoding.TextMarshaler).MarshalText()
}

// appendCompact appends JSON from a Marshaler or a RawMessage. It must contain
// neither white space to remove nor characters to escape.
func appendCompact(b, raw []byte) ([]byte, error) {
	p := parser{data: raw, compact: true}
	if err := p.skip(0); err != nil || p.pos != len(raw) {
		return nil, errNotPlain
	}
	return append(b, raw...), nil
}

func appendStruct(b []byte, v reflect.Value, t reflect.Type, depth int) ([]byte, error) {
	fields, err := fieldsOf(t)
	if err != nil {
		return nil, err
	}
	b = append(b, '{')
	first := true
	for i := range fields {
		f := &fields[i]
		fv := f.of(v)
		if f.omitEmpty && isEmpty(fv) {
			continue
		}
		if f.omitZero {
			zero, err := isZero(fv)
			if err != nil {
				return nil, err
			}
			if zero {
				continue
			}
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(append(append(b, '"'), f.name...), '"', ':')
		if b, err = appendValue(b, fv, depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// isEmpty reports whether omitempty omits the value.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// isZero reports whether omitzero omits the value.
func isZero(v reflect.Value) (bool, error) {
	t := v.Type()
	if !hasMethods(t) || v.Kind() == reflect.Interface {
		return v.IsZero(), nil
	}
	if v.CanAddr() {
		v = v.Addr()
	}
	if !v.CanInterface() {
		return false, errNotPlain
	}
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok {
		return z.IsZero(), nil
	}
	return reflect.Indirect(v).IsZero(), nil
}

func appendList(b []byte, v reflect.Value, t reflect.Type, depth int) ([]byte, error) {
	if t.Elem().Kind() == reflect.Uint8 {
		if t.Elem() != reflect.TypeFor[byte]() {
			return nil, errNotPlain // it may have methods
		}
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), v.Bytes()), '"'), nil
	}
	b = append(b, '[')
	for i := range v.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendValue(b, v.Index(i), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, v reflect.Value, t reflect.Type, depth int) ([]byte, error) {
	if t.Key() != reflect.TypeFor[string]() {
		return nil, errNotPlain
	}
	if v.IsNil() {
		return append(b, "null"...), nil
	}
	keys := make([]string, 0, v.Len())
	for _, k := range v.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k), ':')
		var err error
		if b, err = appendValue(b, v.MapIndex(reflect.ValueOf(k)), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// appendString appends a JSON string with encoding/json's escapes: HTML
// characters are escaped and invalid UTF-8 is replaced.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case isPlainByte(c):
				b = append(b, c)
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c == '\b':
				b = append(b, '\\', 'b')
			case c == '\f':
				b = append(b, '\\', 'f')
			case c == '\n':
				b = append(b, '\\', 'n')
			case c == '\r':
				b = append(b, '\\', 'r')
			case c == '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, `\ufffd`...)
		case r == '\u2028' || r == '\u2029':
			b = append(b, `\u202`...)
			b = append(b, hex[r&15])
		default:
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return append(b, '"')
}

// isPlainByte reports whether an ASCII byte needs no escape.
func isPlainByte(c byte) bool {
	return c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}
