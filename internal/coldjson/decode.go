package coldjson

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Unmarshal does what [json.Unmarshal] does.
func Unmarshal(data []byte, v any) error {
	if plain(data, v, false) {
		return nil
	}
	return json.Unmarshal(data, v)
}

// UnmarshalKnown decodes into a zero value and tells whether that went well
// and the type has a field for every name in data. (For a known name that is
// not plain the answer may be false all the same.)
func UnmarshalKnown(data []byte, v any) bool { return plain(data, v, true) }

// plain decodes what is plain into a value that is zero, which stays so if it
// is not.
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

// parser reads one JSON document.
type parser struct {
	data []byte
	pos  int
	// strict refuses names that a struct has not.
	strict bool
	// compact refuses what encoding/json would write otherwise: white space and
	// what it escapes for HTML.
	compact bool
}

// next is the next byte that is no white space, 0 at the end.
func (p *parser) next() byte {
	for p.pos < len(p.data) {
		switch c := p.data[p.pos]; c {
		case ' ', '\t', '\n', '\r':
			if p.compact {
				return 0
			}
			p.pos++
		default:
			return c
		}
	}
	return 0
}

func (p *parser) atEnd() bool { return p.next() == 0 && p.pos == len(p.data) }

// take goes past a byte that must come next.
func (p *parser) take(c byte) error {
	if p.next() != c {
		return errNotPlain
	}
	p.pos++
	return nil
}

// word goes past a literal.
func (p *parser) word(s string) error {
	if len(p.data)-p.pos < len(s) || string(p.data[p.pos:p.pos+len(s)]) != s {
		return errNotPlain
	}
	p.pos += len(s)
	return nil
}

// text reads a string without escapes.
func (p *parser) text() (string, error) {
	if err := p.take('"'); err != nil {
		return "", err
	}
	start, ascii := p.pos, true
	for ; p.pos < len(p.data); p.pos++ {
		switch c := p.data[p.pos]; {
		case c == '"':
			s := string(p.data[start:p.pos])
			p.pos++
			if !ascii && (!utf8.ValidString(s) || p.compact && strings.ContainsAny(s, "\u2028\u2029")) {
				return "", errNotPlain
			}
			return s, nil
		case c >= utf8.RuneSelf:
			ascii = false
		case c < ' ', c == '\\', p.compact && !isPlainByte(c):
			return "", errNotPlain
		}
	}
	return "", errNotPlain
}

// number reads a number by the grammar of RFC 8259.
func (p *parser) number() (string, error) {
	start := p.pos
	digits := func() bool {
		from := p.pos
		for p.pos < len(p.data) && p.data[p.pos] >= '0' && p.data[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	is := func(set string) bool {
		if p.pos < len(p.data) && strings.IndexByte(set, p.data[p.pos]) >= 0 {
			p.pos++
			return true
		}
		return false
	}
	is("-")
	if !is("0") && !digits() {
		return "", errNotPlain
	}
	if is(".") && !digits() {
		return "", errNotPlain
	}
	if is("eE") {
		is("+-")
		if !digits() {
			return "", errNotPlain
		}
	}
	return string(p.data[start:p.pos]), nil
}

// skip goes past any value.
func (p *parser) skip(depth int) error {
	if depth > maxDepth {
		return errNotPlain
	}
	switch c := p.next(); c {
	case '{':
		return p.object(func(string) error { return p.skip(depth + 1) })
	case '[':
		return p.list(func(int) error { return p.skip(depth + 1) })
	case '"':
		return p.skipText()
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		_, err := p.number()
		return err
	}
}

// skipText goes past a string; one that is only passed on may have escapes.
func (p *parser) skipText() error {
	start := p.pos
	if _, err := p.text(); err == nil {
		return nil
	}
	p.pos = start + 1
	for p.pos < len(p.data) {
		switch c := p.data[p.pos]; {
		case c == '"':
			p.pos++
			return nil
		case c == '\\':
			if err := p.escape(); err != nil {
				return err
			}
		case c < ' ', c >= utf8.RuneSelf, p.compact && !isPlainByte(c):
			return errNotPlain
		default:
			p.pos++
		}
	}
	return errNotPlain
}

// escape goes past an escape sequence.
func (p *parser) escape() error {
	p.pos++
	if p.pos == len(p.data) {
		return errNotPlain
	}
	c := p.data[p.pos]
	p.pos++
	if c != 'u' {
		if strings.IndexByte(`"\/bfnrt`, c) < 0 {
			return errNotPlain
		}
		return nil
	}
	if len(p.data)-p.pos < 4 {
		return errNotPlain
	}
	for _, h := range p.data[p.pos : p.pos+4] {
		if strings.IndexByte("0123456789abcdefABCDEF", h) < 0 {
			return errNotPlain
		}
	}
	p.pos += 4
	return nil
}

// object calls each at the value of every name.
func (p *parser) object(each func(name string) error) error {
	p.pos++
	if p.next() == '}' {
		p.pos++
		return nil
	}
	for {
		name, err := p.text()
		if err != nil {
			return err
		}
		if err := p.take(':'); err != nil {
			return err
		}
		if err := each(name); err != nil {
			return err
		}
		switch p.next() {
		case ',':
			p.pos++
			if p.next() != '"' {
				return errNotPlain
			}
		case '}':
			p.pos++
			return nil
		default:
			return errNotPlain
		}
	}
}

// list calls each at every value.
func (p *parser) list(each func(i int) error) error {
	p.pos++
	if p.next() == ']' {
		p.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := each(i); err != nil {
			return err
		}
		switch p.next() {
		case ',':
			p.pos++
		case ']':
			p.pos++
			return nil
		default:
			return errNotPlain
		}
	}
}

// raw goes past a value and returns its text.
func (p *parser) raw(depth int) ([]byte, error) {
	p.next()
	start := p.pos
	if err := p.skip(depth); err != nil {
		return nil, err
	}
	return p.data[start:p.pos], nil
}

// value decodes the next value into v, which is zero.
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
			v.SetString(s)
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

// own lets a value of a named type decode itself, where it can.
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
	if a := v.Addr(); a.Type().NumMethod() > 0 && a.CanInterface() {
		switch m := a.Interface().(type) {
		case json.Unmarshaler:
			raw, err := p.raw(depth)
			if err == nil {
				err = m.UnmarshalJSON(raw)
			}
			return true, err
		case encoding.TextUnmarshaler:
			if p.next() == 'n' {
				return true, p.word("null")
			}
			s, err := p.text()
			if err == nil {
				err = m.UnmarshalText([]byte(s))
			}
			return true, err
		}
	}
	return false, nil
}

// structure decodes an object into a struct. A name fits a field of the same
// name, else the first that differs in case only.
func (p *parser) structure(v reflect.Value, t reflect.Type, depth int) error {
	if p.next() != '{' {
		return errNotPlain
	}
	fields, err := fieldsOf(t)
	if err != nil {
		return err
	}
	seen := make([]bool, len(fields))
	return p.object(func(name string) error {
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

func find(fields []field, name string) int {
	for i := range fields {
		if fields[i].name == name {
			return i
		}
	}
	for i := range fields {
		if strings.EqualFold(fields[i].name, name) {
			return i
		}
	}
	return -1
}

func (p *parser) slice(v reflect.Value, t reflect.Type, depth int) error {
	if p.next() != '[' || t.Elem().Kind() == reflect.Uint8 {
		return errNotPlain
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

func (p *parser) mapping(v reflect.Value, t reflect.Type, depth int) error {
	if p.next() != '{' || t.Key() != reflect.TypeFor[string]() {
		return errNotPlain
	}
	out := reflect.MakeMap(t)
	err := p.object(func(name string) error {
		one := reflect.New(t.Elem()).Elem()
		if err := p.value(one, depth+1); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(name), one)
		return nil
	})
	if err == nil {
		v.Set(out)
	}
	return err
}

// anything decodes into an empty interface, for which encoding/json has
// nothing to prepare.
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
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v.OverflowInt(n) {
			return errNotPlain
		}
		v.SetInt(n)
		return nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || v.OverflowUint(n) {
			return errNotPlain
		}
		v.SetUint(n)
		return nil
	}
	return errNotPlain
}
