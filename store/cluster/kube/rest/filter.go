package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/cnibox/cnibox/store/cluster/web"
)

// shape has the names of the wanted members of a JSON object, with the shape of each. A nil shape means
// the whole value.
type shape map[string]shape

// shapeOf returns the members that encoding/json would store in a value of the type.
func shapeOf(t reflect.Type) shape {
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	s := shape{}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch inner := shapeOf(field.Type); {
		case field.Anonymous && name == "":
			for k, v := range inner {
				s[k] = v
			}
		case field.IsExported() && name != "" && name != "-":
			s[name] = inner
		}
	}
	return s
}

// filter reads JSON values from a stream in one pass and keeps only the wanted parts. Most of a Node is
// not used, and encoding/json would read each of its bytes three times. filter does not fully validate
// the skipped parts. encoding/json validates the others.
type filter struct {
	r        io.Reader
	buf      []byte
	pos, end int
	left     int64 // bytes that one value may still have
	out      []byte
}

func newFilter(r io.Reader) *filter { return &filter{r: r, buf: make([]byte, 64<<10)} }

// errJSON means that the stream is not the expected JSON.
var errJSON = errors.New("unexpected JSON")

// decode reads the next value and stores the wanted parts in v. It returns io.EOF at the end of the
// stream before a value.
func (f *filter) decode(s shape, v any) error {
	f.left, f.out = maxObject, f.out[:0]
	if _, err := f.peek(); err != nil {
		return err
	}
	if err := f.value(s, true); err != nil {
		return whole(err)
	}
	if err := json.Unmarshal(f.out, v); err != nil {
		return fmt.Errorf("%w: %w", errJSON, err)
	}
	return nil
}

// whole replaces io.EOF inside a value by an error.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// peek skips white space and returns the next byte.
func (f *filter) peek() (byte, error) {
	for {
		for ; f.pos < f.end; f.pos++ {
			if c := f.buf[f.pos]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				return c, nil
			}
		}
		if err := f.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads more bytes and discards the used ones.
func (f *filter) fill() error {
	if f.left < 0 {
		return web.ErrTooLarge
	}
	n, err := f.r.Read(f.buf)
	f.pos, f.end = 0, n
	f.left -= int64(n)
	if n > 0 {
		return nil
	}
	return err
}

// expect consumes a byte.
func (f *filter) expect(want byte) error {
	c, err := f.peek()
	if err == nil && c != want {
		err = fmt.Errorf("%w: %q in place of %q", errJSON, c, want)
	}
	if err == nil {
		f.pos++
	}
	return err
}

// value reads a value, and keeps its wanted parts.
func (f *filter) value(s shape, keep bool) error {
	c, err := f.peek()
	switch {
	case err != nil:
		return err
	case c == '"':
		return f.text(keep)
	case c == '{' && s != nil && keep:
		return f.object(s)
	case c == '{' || c == '[':
		return f.nested(keep)
	}
	return f.literal(keep)
}

// object reads an object and keeps the wanted members.
func (f *filter) object(s shape) error {
	f.out = append(f.out, '{')
	begin := len(f.out)
	err := f.members(func(mark int) error {
		inner, ok := s[string(f.out[mark+1:len(f.out)-1])]
		if !ok {
			f.out = f.out[:mark]
			return f.value(nil, false)
		}
		if mark > begin {
			f.out = append(f.out, 0)
			copy(f.out[mark+1:], f.out[mark:])
			f.out[mark] = ','
		}
		f.out = append(f.out, ':')
		return f.value(inner, true)
	})
	f.out = append(f.out, '}')
	return err
}

// members reads an object. It calls each with the member's name in quotes at
// out[mark:] and the value ahead.
func (f *filter) members(each func(mark int) error) error {
	return f.list('{', '}', func() error {
		if c, err := f.peek(); err != nil || c != '"' {
			return errors.Join(err, errJSON)
		}
		mark := len(f.out)
		if err := f.text(true); err != nil {
			return err
		}
		if err := f.expect(':'); err != nil {
			return err
		}
		return each(mark)
	})
}

// list reads the comma-separated items between two brackets.
func (f *filter) list(open, closing byte, each func() error) error {
	if err := f.expect(open); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, err := f.peek()
		switch {
		case err != nil:
			return err
		case c == closing:
			f.pos++
			return nil
		case !first:
			if err := f.expect(','); err != nil {
				return err
			}
		}
		if err := each(); err != nil {
			return err
		}
	}
}

// take advances to pos. With keep it keeps the bytes up to there.
func (f *filter) take(pos int, keep bool) {
	if keep {
		f.out = append(f.out, f.buf[f.pos:pos]...)
	}
	f.pos = pos
}

// text reads a string, which begins at the current byte.
func (f *filter) text(keep bool) error {
	f.take(f.pos+1, keep)
	escaped := false
	for {
		for i := f.pos; i < f.end; i++ {
			switch c := f.buf[i]; {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				f.take(i+1, keep)
				return nil
			}
		}
		f.take(f.end, keep)
		if err := f.fill(); err != nil {
			return err
		}
	}
}

// nested reads an object or array, which begins at the current byte.
func (f *filter) nested(keep bool) error {
	depth := 0
	for {
		for i := f.pos; i < f.end; i++ {
			switch f.buf[i] {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
				if depth == 0 {
					f.take(i+1, keep)
					return nil
				}
			case '"':
				f.take(i, keep)
				if err := f.text(keep); err != nil {
					return err
				}
				i = f.pos - 1
			}
		}
		f.take(f.end, keep)
		if err := f.fill(); err != nil {
			return err
		}
	}
}

// literal reads a number, a boolean or null. The stream may end after it.
func (f *filter) literal(keep bool) error {
	for n := 0; ; {
		for i := f.pos; i < f.end; i++ {
			if strings.IndexByte(",]} \n\t\r", f.buf[i]) >= 0 {
				n += i - f.pos
				if n == 0 {
					return fmt.Errorf("%w: %q in place of a value", errJSON, f.buf[i])
				}
				f.take(i, keep)
				return nil
			}
		}
		n += f.end - f.pos
		f.take(f.end, keep)
		if err := f.fill(); err != nil {
			if errors.Is(err, io.EOF) && n > 0 {
				return nil
			}
			return err
		}
	}
}
