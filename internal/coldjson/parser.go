package coldjson

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// parser reads one JSON document.
type parser struct {
	data []byte
	pos  int
	// strict refuses names for which a struct has no field.
	strict bool
	// compact refuses text that encoding/json would change in its output: white space, and characters
	// that it escapes for HTML.
	compact bool
}

// next is the next byte that is not white space, or 0 at the end.
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

// take skips the byte c and returns an error if another byte is next.
func (p *parser) take(c byte) error {
	if p.next() != c {
		return errNotPlain
	}
	p.pos++
	return nil
}

// word skips a literal.
func (p *parser) word(s string) error {
	if len(p.data)-p.pos < len(s) || string(p.data[p.pos:p.pos+len(s)]) != s {
		return errNotPlain
	}
	p.pos += len(s)
	return nil
}

// text reads a string without escapes. The result is a part of data and no copy, because most strings
// are only compared or skipped.
func (p *parser) text() ([]byte, error) {
	if err := p.take('"'); err != nil {
		return nil, err
	}
	start, ascii := p.pos, true
	for i, c := range p.data[start:] {
		if isPlainByte(c) && c < utf8.RuneSelf {
			continue
		}
		switch {
		case c == '"':
			s := p.data[start : start+i]
			p.pos = start + i + 1
			if !ascii && (!utf8.Valid(s) || p.compact && bytes.ContainsAny(s, "\u2028\u2029")) {
				return nil, errNotPlain
			}
			return s, nil
		case c >= utf8.RuneSelf:
			ascii = false
		case c < ' ', c == '\\', p.compact:
			return nil, errNotPlain
		}
	}
	return nil, errNotPlain
}

// number reads a number according to the grammar of RFC 8259.
func (p *parser) number() ([]byte, error) {
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
		return nil, errNotPlain
	}
	if is(".") && !digits() {
		return nil, errNotPlain
	}
	if is("eE") {
		is("+-")
		if !digits() {
			return nil, errNotPlain
		}
	}
	return p.data[start:p.pos], nil
}

// skip skips any value.
func (p *parser) skip(depth int) error {
	if depth > maxDepth {
		return errNotPlain
	}
	switch c := p.next(); c {
	case '{':
		return p.object(func([]byte) error { return p.skip(depth + 1) })
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

// skipText skips a string. It accepts escapes, because the text is passed on
// unchanged.
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

// escape skips an escape sequence.
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

// object calls each for every name of an object, with the parser at the name's
// value. name is a part of data.
func (p *parser) object(each func(name []byte) error) error {
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

// list calls each for every value of a list.
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

// raw skips a value and returns its text.
func (p *parser) raw(depth int) ([]byte, error) {
	p.next()
	start := p.pos
	if err := p.skip(depth); err != nil {
		return nil, err
	}
	return p.data[start:p.pos], nil
}
