package yaml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	errOpen   = errors.New("a bracket or brace is not closed")
	errQuotes = errors.New("quotes are not closed")
)

// flow reads a value inside brackets or braces, or such a collection.
func (p *parser) flow() error {
	switch c := p.peek(); {
	case p.done():
		return errOpen
	case c == '{' || c == '[':
		return p.collection(c == '{')
	case c == '"' || c == '\'':
		s, err := p.quoted()
		if err == nil {
			p.emit(s)
		}
		return err
	}
	s, err := p.flowPlain()
	if err != nil {
		return err
	}
	return p.scalar(s)
}

// flowPlain reads a scalar without quotes inside brackets or braces.
func (p *parser) flowPlain() (string, error) {
	if err := p.indicator(true); err != nil {
		return "", err
	}
	s := p.plainLine(true)
	end := p.at
	if p.skip(); p.at < len(p.text) && strings.IndexByte(",]}:", p.peek()) < 0 {
		return "", errors.New("a value of several lines inside brackets or braces: quote it, or is a comma missing?")
	}
	p.at = end
	return s, nil
}

// collection reads a flow mapping or sequence.
func (p *parser) collection(mapping bool) error {
	if err := p.enter(); err != nil {
		return err
	}
	p.tabs++
	defer func() { p.depth--; p.tabs-- }()
	closing := byte(']')
	if mapping {
		closing = '}'
	}
	p.out = append(p.out, p.peek())
	p.at++
	seen := map[string]bool{}
	for first := true; ; first = false {
		p.skip()
		if p.peek() == closing {
			p.at++
			p.out = append(p.out, closing)
			return nil
		}
		if !first {
			p.out = append(p.out, ',')
		}
		if mapping {
			if err := p.flowKey(seen); err != nil {
				return err
			}
		}
		if err := p.flow(); err != nil {
			return err
		}
		p.skip()
		switch c := p.peek(); {
		case p.done():
			return errOpen
		case c == ',':
			p.at++
		case c == closing:
		case c == ':':
			return errors.New("a mapping inside brackets needs braces")
		default:
			return fmt.Errorf("want a comma or %q before %q", closing, p.rest())
		}
	}
}

// flowKey reads a key and its colon inside braces.
func (p *parser) flowKey(seen map[string]bool) (err error) {
	begin := p.at
	var key string
	c := p.peek()
	if quoted := c == '"' || c == '\''; quoted {
		key, err = p.quoted()
	} else if key, err = p.flowPlain(); err == nil {
		err = plainKey(key)
	}
	switch {
	case err != nil:
		return err
	case p.at-begin > maxKey:
		return errKey
	case strings.Contains(p.text[begin:p.at], "\n"):
		return errors.New("a key of several lines")
	case seen[key]:
		return fmt.Errorf("key %q is given twice", key)
	}
	seen[key] = true
	p.spaces()
	if p.peek() != ':' {
		return fmt.Errorf("want a colon after key %q", key)
	}
	p.at++
	if c != '"' && c != '\'' && !p.blankAt(p.at) || strings.IndexByte(",}", p.peek()) >= 0 && p.peek() != 0 {
		return fmt.Errorf("want a space and a value after key %q", key)
	}
	p.emit(key)
	p.out = append(p.out, ':')
	p.skip()
	if c := p.peek(); c == ',' || c == '}' {
		return fmt.Errorf("want a value after key %q", key)
	}
	return nil
}

// quoted reads a scalar in quotes; line breaks in it fold.
func (p *parser) quoted() (string, error) {
	quote := p.peek()
	p.tabs++
	defer func() { p.tabs-- }()
	var b strings.Builder
	for p.at++; p.at < len(p.text); {
		c := p.text[p.at]
		switch {
		case c == '\'' && quote == '\'' && p.byteAt(p.at+1) == '\'':
			b.WriteByte('\'')
			p.at += 2
		case c == quote:
			p.at++
			return b.String(), nil
		case c == '\\' && quote == '"':
			if err := p.escape(&b); err != nil {
				return "", err
			}
		case c == ' ' || c == '\t' || c == '\n':
			begin := p.at
			p.spaces()
			if p.peek() != '\n' {
				b.WriteString(p.text[begin:p.at])
				continue
			}
			b.WriteString(fold(p.breaks()))
			if p.done() && p.at < len(p.text) {
				return "", errors.New("a document marker inside quotes")
			}
		default:
			b.WriteByte(c)
			p.at++
		}
	}
	return "", errQuotes
}

// escape reads one escape of a double-quoted scalar.
func (p *parser) escape(b *strings.Builder) error {
	const from, to = "0abtnvfre \"\\N_LP", "\x00\a\b\t\n\v\f\r\x1b \"\\\u0085\u00a0\u2028\u2029"
	c := p.byteAt(p.at + 1)
	p.at = min(p.at+2, len(p.text))
	digits := 0
	switch c {
	case '\n':
		if b.WriteString(strings.Repeat("\n", p.breaks())); p.done() && p.at < len(p.text) {
			return errors.New("a document marker inside quotes")
		}
		return nil
	case '\t':
		b.WriteByte(c)
		return nil
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	case 0:
		return errQuotes
	default:
		i := strings.IndexByte(from, c)
		if i < 0 {
			return fmt.Errorf("unknown escape \\%c", c)
		}
		b.WriteRune([]rune(to)[i])
		return nil
	}
	if len(p.text)-p.at < digits {
		return errQuotes
	}
	n, err := strconv.ParseUint(p.text[p.at:p.at+digits], 16, 32)
	if err != nil || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		return fmt.Errorf("%q is no character", p.text[p.at-2:p.at+digits])
	}
	p.at += digits
	b.WriteRune(rune(n))
	return nil
}
