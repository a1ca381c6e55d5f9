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

// shape is what of a JSON object is wanted: its members' names, and what of
// each; nil is all of it.
type shape map[string]shape

// shapeOf is what encoding/json would store in a value of the type.
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

// filter reads JSON values from a stream and gives what is wanted of them, in a
// single pass: most of a Node is of no use here, and encoding/json would look at
// each of its bytes three times. What is skipped need not be JSON in all points;
// what is given is judged by encoding/json.
type filter struct {
	r        io.Reader
	buf      []byte
	pos, end int
	left     int64 // that one value may still take
	out      []byte
}

func newFilter(r io.Reader) *filter { return &filter{r: r, buf: make([]byte, 64<<10)} }

// errJSON is a stream that is none.
var errJSON = errors.New("not the JSON that is expected")

// decode reads the next value and stores what is wanted of it in v. io.EOF is
// the end before a value.
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

// whole makes an end inside a value one.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// peek goes over white space and tells the byte that follows.
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

// fill reads on; everything that was read before is done with.
func (f *filter) fill() error {
	if f.left < 0 {
		return web.ErrTooLarge
	}
	n, err := f.r.Read(f.buf)
	f.pos, f.end = 0, n
	if f.left -= int64(n); n > 0 {
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

// value goes over a value, and keeps what is wanted of it.
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

// object keeps the members that are wanted.
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

// members goes over an object: each is called with its name in quotes at
// out[mark:], and the value ahead.
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

// list goes over what stands between brackets, with commas between.
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

// take goes on to pos and keeps what is between.
func (f *filter) take(pos int, keep bool) {
	if keep {
		f.out = append(f.out, f.buf[f.pos:pos]...)
	}
	f.pos = pos
}

// text goes over a string, which begins here.
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

// nested goes over an object or array, which begins here.
func (f *filter) nested(keep bool) error {
	depth := 0
	for {
		for i := f.pos; i < f.end; i++ {
			switch f.buf[i] {
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
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

// literal goes over a number, a truth value or null. It may end the stream.
func (f *filter) literal(keep bool) error {
	for n := 0; ; {
		for i := f.pos; i < f.end; i++ {
			if strings.IndexByte(",]} \n\t\r", f.buf[i]) >= 0 {
				if n += i - f.pos; n == 0 {
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
