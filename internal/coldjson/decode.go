package coldjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Unmarshal has the same effect as [json.Unmarshal].
func Unmarshal(data []byte, v any) error {
	if plain(data, v, false) {
		return nil
	}
	return json.Unmarshal(data, v)
}

// UnmarshalKnown decodes data into a zero value. It reports whether this
// succeeded and the type has a field for every name in data. It may report
// false for data that only encoding/json can decode.
func UnmarshalKnown(data []byte, v any) bool { return plain(data, v, true) }

// plain decodes plain data into a zero value. If it returns false the value is
// still zero.
func plain(data []byte, v any, strict bool) bool {
	dst := reflect.ValueOf(v)
	if dst.Kind() != reflect.Pointer || dst.IsNil() || !dst.Elem().IsZero() {
		return false
	}
	p := parser{data: data, strict: strict}
	if p.value(dst.Elem(), 0) != nil || !p.atEnd() {
		dst.Elem().SetZero()
		return false
	}
	return true
}

// value decodes the next value into the zero value v.
func (p *parser) value(v reflect.Value, depth int) error {
	if depth > maxDepth {
		return errNotPlain
	}
	t := v.Type()
	if hasMethods(t) {
		if ok, err := p.own(v, t, depth); ok || err != nil {
			return err
		}
	}
	c := p.next()
	if c == 'n' {
		return p.word("null") // v is zero
	}
	switch v.Kind() {
	case reflect.Pointer:
		n := reflect.New(t.Elem())
		if err := p.value(n.Elem(), depth+1); err != nil {
			return err
		}
		v.Set(n)
		return nil
	case reflect.Struct:
		return p.structure(v, t, depth)
	case reflect.Slice:
		return p.slice(v, t, depth)
	case reflect.Map:
		return p.mapping(v, t, depth)
	case reflect.Interface:
		return p.anything(v, depth)
	case reflect.String:
		s, err := p.text()
		if err == nil {
			v.SetString(string(s))
		}
		return err
	case reflect.Bool:
		word := "false"
		if c == 't' {
			word = "true"
			v.SetBool(true)
		}
		return p.word(word)
	}
	return p.integer(v)
}

// own decodes a value with its type's UnmarshalJSON or UnmarshalText. It reports whether there is one.
func (p *parser) own(v reflect.Value, t reflect.Type, depth int) (bool, error) {
	if t == reflect.TypeFor[json.RawMessage]() {
		raw, err := p.raw(depth)
		if err == nil {
			v.SetBytes(append([]byte(nil), raw...))
		}
		return true, err
	}
	if v.Kind() == reflect.Interface || !v.CanAddr() {
		return false, nil
	}
	a := v.Addr()
	if a.Type().NumMethod() == 0 || !a.CanInterface() {
		return false, nil
	}
	switch {
	case t == reflect.TypeFor[time.Time](), a.Type().Implements(reflect.TypeFor[json.Unmarshaler]()):
		raw, err := p.raw(depth)
		if err == nil {
			err = unmarshalJSON(a.Interface(), raw)
		}
		return true, err
	case a.Type().Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		if p.next() == 'n' {
			return true, p.word("null")
		}
		s, err := p.text()
		if err == nil {
			err = unmarshalText(a.Interface(), s)
		}
		return true, err
	}
	return false, nil
}

// unmarshalJSON calls the UnmarshalJSON method. The method of time.Time, which
// every record has, is called directly.
func unmarshalJSON(m any, raw []byte) error {
	if t, ok := m.(*time.Time); ok {
		return t.UnmarshalJSON(raw)
	}
	return m.(json.Unmarshaler).UnmarshalJSON(raw)
}

// unmarshalText calls the UnmarshalText method. The method of netip.Prefix is
// called directly.
func unmarshalText(m any, text []byte) error {
	if p, ok := m.(*netip.Prefix); ok {
		return p.UnmarshalText(text)
	}
	return m.(encoding.TextUnmarshaler).UnmarshalText(text)
}

// structure decodes an object into a struct. A name matches the field with the
// same name, else the first field whose name differs in case only.
func (p *parser) structure(v reflect.Value, t reflect.Type, depth int) error {
	if p.next() != '{' {
		return errNotPlain
	}
	fields, err := fieldsOf(t)
	if err != nil {
		return err
	}
	seen := make([]bool, len(fields))
	return p.object(func(name []byte) error {
		i := find(fields, name)
		if i < 0 && p.strict {
			return errNotPlain
		}
		if i < 0 {
			return p.skip(depth + 1)
		}
		if seen[i] {
			return errNotPlain
		}
		seen[i] = true
		return p.value(fields[i].of(v), depth+1)
	})
}

func find(fields []field, name []byte) int {
	for i := range fields {
		if fields[i].name == string(name) {
			return i
		}
	}
	for i := range fields {
		if strings.EqualFold(fields[i].name, string(name)) {
			return i
		}
	}
	return -1
}

func (p *parser) slice(v reflect.Value, t reflect.Type, depth int) error {
	if p.next() != '[' || t.Elem().Kind() == reflect.Uint8 {
		return errNotPlain
	}
	if t == reflect.TypeFor[[]netip.Addr]() {
		all, err := p.addresses()
		if err == nil {
			v.Set(reflect.ValueOf(all))
		}
		return err
	}
	out := reflect.MakeSlice(t, 0, 0)
	err := p.list(func(int) error {
		out = reflect.Append(out, reflect.Zero(t.Elem()))
		return p.value(out.Index(out.Len()-1), depth+1)
	})
	if err == nil {
		v.Set(out)
	}
	return err
}

// addresses decodes a list of addresses, of which a cloud's source has hundreds. This takes a quarter
// of the time, because it does not look up the method for each element.
func (p *parser) addresses() ([]netip.Addr, error) {
	end := max(0, bytes.IndexByte(p.data[p.pos:], ']'))
	all := make([]netip.Addr, 0, bytes.Count(p.data[p.pos:p.pos+end], []byte{'"'})/2)
	err := p.list(func(int) error {
		s, err := p.text()
		if err != nil {
			return err
		}
		a, err := netip.ParseAddr(string(s))
		all = append(all, a)
		return err
	})
	return all, err
}

func (p *parser) mapping(v reflect.Value, t reflect.Type, depth int) error {
	if p.next() != '{' || t.Key() != reflect.TypeFor[string]() {
		return errNotPlain
	}
	out := reflect.MakeMap(t)
	err := p.object(func(name []byte) error {
		one := reflect.New(t.Elem()).Elem()
		if err := p.value(one, depth+1); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(string(name)), one)
		return nil
	})
	if err == nil {
		v.Set(out)
	}
	return err
}

// anything decodes into an empty interface with encoding/json, which has no type to prepare then.
func (p *parser) anything(v reflect.Value, depth int) error {
	if v.NumMethod() > 0 {
		return errNotPlain
	}
	raw, err := p.raw(depth)
	if err != nil {
		return err
	}
	var x any
	if err := json.Unmarshal(raw, &x); err != nil {
		return err
	}
	v.Set(reflect.ValueOf(&x).Elem())
	return nil
}

func (p *parser) integer(v reflect.Value) error {
	s, err := p.number()
	if err != nil {
		return err
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(string(s), 10, 64)
		if err != nil || v.OverflowInt(n) {
			return errNotPlain
		}
		v.SetInt(n)
		return nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(string(s), 10, 64)
		if err != nil || v.OverflowUint(n) {
			return errNotPlain
		}
		v.SetUint(n)
		return nil
	}
	return errNotPlain
}
