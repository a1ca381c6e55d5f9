package yaml

import (
	"errors"
	"fmt"
	"strings"
)

// block reads the value that begins here, on a line of its own or after a dash;
// parent is the column of the collection that it is in, -1 for none.
func (p *parser) block(parent int) error {
	if p.dash() {
		return p.sequence(p.column())
	}
	switch _, n, err := p.key(); {
	case err != nil:
		return err
	case n > 0:
		return p.mapping(p.column())
	}
	return p.inline(parent)
}

// dash tells whether an item of a sequence begins here.
func (p *parser) dash() bool { return p.peek() == '-' && p.blankAt(p.at+1) }

// sequence reads the items whose dashes stand in this column.
func (p *parser) sequence(column int) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer func() { p.depth-- }()
	p.out = append(p.out, '[')
	for {
		p.at++
		if err := p.item(column); err != nil {
			return err
		}
		more, err := p.next(column)
		if err != nil {
			return err
		}
		if !more || !p.dash() {
			p.out = append(p.out, ']')
			return nil // a mapping's next key may stand in the same column
		}
		p.out = append(p.out, ',')
	}
}

// item reads what follows a dash.
func (p *parser) item(column int) error {
	p.spaces()
	if p.lineEnd() {
		return p.below(column, false)
	}
	return p.block(column)
}

// below reads a value that begins on a later line; nothing there is null.
// A mapping's sequence may stand in the mapping's own column.
func (p *parser) below(column int, dashes bool) error {
	p.skip()
	at := p.column()
	switch {
	case p.done(), at < column, at == column && !p.dash(), at == column && !dashes:
		p.out = append(p.out, "null"...)
		return nil
	case at == column:
		return p.sequence(column)
	}
	return p.block(column)
}

// next goes to the next entry of the collection in this column; more is false
// when the collection ended.
func (p *parser) next(column int) (more bool, err error) {
	p.skip()
	at := p.column()
	switch {
	case p.done() || at < column:
		return false, nil
	case at > column:
		return false, fmt.Errorf("%q is indented by %d, its neighbours by %d", p.rest(), at, column)
	}
	return true, nil
}

// mapping reads the entries whose keys stand in this column.
func (p *parser) mapping(column int) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer func() { p.depth-- }()
	seen := map[string]bool{}
	p.out = append(p.out, '{')
	for {
		key, n, err := p.key()
		switch {
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("%q is no key: want \"key: value\"", p.rest())
		case seen[key]:
			return fmt.Errorf("key %q is given twice", key)
		}
		seen[key] = true
		p.at += n
		p.emit(key)
		p.out = append(p.out, ':')
		if err := p.entry(column); err != nil {
			return err
		}
		more, err := p.next(column)
		if err != nil {
			return err
		}
		if !more {
			p.out = append(p.out, '}')
			return nil
		}
		p.out = append(p.out, ',')
	}
}

// entry reads what follows a key's colon.
func (p *parser) entry(column int) error {
	p.spaces()
	if p.lineEnd() {
		return p.below(column, true)
	}
	if p.dash() {
		return errors.New("begin the sequence on a line of its own")
	}
	if _, n, err := p.key(); err != nil {
		return err
	} else if n > 0 {
		return fmt.Errorf("%q is a key inside a value: quote the value, or put the mapping on a line of its own", p.rest())
	}
	return p.inline(column)
}

// inline reads a value that is no block collection, and what may follow it on its line.
func (p *parser) inline(parent int) error {
	var err error
	switch p.peek() {
	case '|', '>':
		return p.literal(parent)
	case '{', '[':
		err = p.flow()
	case '"', '\'':
		var s string
		if s, err = p.quoted(); err == nil {
			p.emit(s)
		}
	default:
		err = p.plain(parent)
	}
	if err != nil {
		return err
	}
	p.spaces()
	if !p.lineEnd() {
		return p.unexpected(" after the value")
	}
	return nil
}

// key reads the key and the colon that begin here, without moving on; n is
// their length, 0 when no key begins here.
func (p *parser) key() (key string, n int, err error) {
	begin := p.at
	defer func() { p.at = begin }()
	quoted := false
	switch c := p.peek(); {
	case c == '?' && p.blankAt(p.at+1):
		return "", 0, errors.New("keys of several lines (?) are not supported")
	case c == ':' && p.blankAt(p.at+1):
		return "", 0, errors.New("a value without a key")
	case c == '"' || c == '\'':
		quoted = true
		key, err = p.quoted()
		if err != nil || strings.Contains(p.text[begin:p.at], "\n") {
			return "", 0, nil //nolint:nilerr // read again as a value, which then tells
		}
	case strings.IndexByte("|>{[", c) >= 0:
		return "", 0, nil
	default:
		key = p.plainLine(false)
	}
	p.spaces()
	if p.peek() != ':' || !p.blankAt(p.at+1) {
		return "", 0, nil
	}
	n = p.at + 1 - begin
	if n > maxKey {
		return "", 0, errKey
	}
	if quoted {
		return key, n, nil
	}
	p.at = begin
	if err := p.indicator(false); err != nil {
		return "", 0, err
	}
	return key, n, plainKey(key)
}
