package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge means that a reply is longer than its bound.
var ErrTooLarge = errors.New("reply is too large")

// Limit returns a reader of at most limit bytes of r. If r has more, its error is ErrTooLarge and not
// io.EOF.
func Limit(r io.Reader, limit int64) io.Reader { return &limited{r: r, left: limit} }

type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	// One more byte than is left shows whether the reply is too long.
	if l.left >= 0 && int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return max(0, n-1), ErrTooLarge
	}
	return n, err
}

// Stream reads the sequence of JSON values that a watch sends.
type Stream struct {
	budget limited
	dec    *json.Decoder
	limit  int64
}

// NewStream returns a Stream of values of at most about limit bytes each.
func NewStream(r io.Reader, limit int64) *Stream {
	s := &Stream{budget: limited{r: r}, limit: limit}
	s.dec = json.NewDecoder(&s.budget)
	return s
}

// Decode reads the next value. It returns io.EOF if the stream ends between two values.
func (s *Stream) Decode(v any) error {
	s.budget.left = s.limit
	return s.dec.Decode(v)
}

// Token reads the next token, which is a name, a bracket or a simple value.
func (s *Stream) Token() (json.Token, error) {
	s.budget.left = s.limit
	return s.dec.Token()
}

// Each calls fn before each element of an array or before the name of each member of an object, depending on the opening
// bracket. A null has none.
func (s *Stream) Each(open json.Delim, fn func() error) error {
	switch got, err := s.Token(); {
	case err != nil || got == nil:
		return err
	case got != open:
		return fmt.Errorf("unexpected JSON: %.40q in place of %q", fmt.Sprint(got), open.String())
	}
	for s.dec.More() {
		if err := fn(); err != nil {
			return err
		}
	}
	_, err := s.Token()
	return err
}
