// Package yaml turns one YAML document into JSON, for the two kinds of file that
// people write in YAML and we read: kubeconfigs and NetworkAttachmentDefinitions.
//
// It reads what those files are made of: block and flow mappings and sequences,
// plain, quoted, literal and folded scalars, comments. It refuses by name what
// they do without and what two YAML versions read in two ways: anchors, aliases,
// tags, directives, keys of several lines, several documents, keys given twice,
// yes/no/on/off and numbers that JSON has not. What it accepts means the same to
// YAML 1.1 and 1.2; a fuzz target compares it with a complete library, which
// would add 0.2 ms to each CNI call.
package yaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxDepth bounds nesting.
	maxDepth = 64
	// maxKey bounds a key on a line (YAML 1.2.2 §7.4.2 allows 1024 characters).
	maxKey = 1000
)

// ErrSyntax is in each error of ToJSON; the text has the line and the fix.
var ErrSyntax = errors.New("YAML")

// errKey names maxKey. Without a format, since the first one costs each start of the program 0.02 ms.
var errKey = errors.New("a key of more than 1000 bytes")

var errTab = errors.New("a tab between things: use spaces")

// ToJSON gives the document as JSON, its keys in their order. A document that
// is JSON already is returned as it stands; an empty one is null.
func ToJSON(doc []byte) ([]byte, error) {
	if json.Valid(doc) {
		return doc, nil
	}
	if !utf8.Valid(doc) {
		return nil, fmt.Errorf("%w: not UTF-8", ErrSyntax)
	}
	text := strings.TrimPrefix(string(doc), "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if i := strings.IndexFunc(text, isControl); i >= 0 {
		return nil, fmt.Errorf("%w: line %d: control character %U", ErrSyntax, 1+strings.Count(text[:i], "\n"), []rune(text[i:])[0])
	}
	p := parser{text: text}
	if err := p.document(); err != nil {
		return nil, fmt.Errorf("%w: line %d: %w", ErrSyntax, 1+strings.Count(p.text[:p.at], "\n"), err)
	}
	return p.out, nil
}

// isControl tells what may stand in a document in an escape only. Line breaks
// other than the newline are among them: YAML 1.1 and 1.2 differ about them.
func isControl(r rune) bool {
	return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

// parser walks text and appends JSON to out.
type parser struct {
	text  string
	at    int
	depth int
	tabs  int // above 0 inside brackets, braces and quotes: tabs are spaces there
	out   []byte
}

// document reads the whole text.
func (p *parser) document() error {
	p.skip()
	if p.marker("---") {
		p.at += len("---")
		p.spaces()
		if !p.lineEnd() {
			return errors.New("begin the document on the line after ---")
		}
		p.skip()
	}
	if p.peek() == '%' {
		return errors.New("directives (%) are not supported")
	}
	if p.at == len(p.text) {
		p.out = append(p.out, "null"...)
	} else if p.done() {
		return p.unexpected("")
	} else if err := p.block(-1); err != nil {
		return err
	}
	p.skip()
	if p.marker("...") {
		p.at += len("...")
		p.spaces()
		if !p.lineEnd() {
			return errors.New("text after the document's end")
		}
		p.skip()
	}
	switch {
	case p.at == len(p.text):
		return nil
	case p.marker("---"):
		return errors.New("one document is expected, here begins another")
	}
	return p.unexpected("")
}

// unexpected is the error for what stands here.
func (p *parser) unexpected(where string) error {
	if p.peek() == '\t' {
		return errTab
	}
	return fmt.Errorf("unexpected %q%s", p.rest(), where)
}

// done tells whether the text or the document ends here.
func (p *parser) done() bool {
	return p.at == len(p.text) || p.marker("---") || p.marker("...")
}

// marker tells whether a document marker stands here.
func (p *parser) marker(m string) bool {
	return p.column() == 0 && strings.HasPrefix(p.text[p.at:], m) && p.blankAt(p.at+len(m))
}

// peek is the byte here, 0 at the end.
func (p *parser) peek() byte { return p.byteAt(p.at) }

func (p *parser) byteAt(i int) byte {
	if i < len(p.text) {
		return p.text[i]
	}
	return 0
}

// blankAt tells whether a space, a line's end or the text's is at i.
func (p *parser) blankAt(i int) bool {
	return i >= len(p.text) || p.text[i] == ' ' || p.text[i] == '\t' || p.text[i] == '\n'
}

// column is how far from the begin of its line this byte stands.
func (p *parser) column() int { return p.at - 1 - strings.LastIndexByte(p.text[:p.at], '\n') }

// rest is what follows on this line, for errors.
func (p *parser) rest() string {
	line, _, _ := strings.Cut(p.text[p.at:], "\n")
	if len(line) > 40 {
		line = strings.ToValidUTF8(line[:40], "") + "…"
	}
	return line
}

// spaces skips what separates on a line.
func (p *parser) spaces() {
	for p.peek() == ' ' || p.peek() == '\t' && p.tabs > 0 {
		p.at++
	}
}

// lineEnd tells whether nothing but a comment follows on this line.
func (p *parser) lineEnd() bool {
	return p.at == len(p.text) || p.text[p.at] == '\n' || p.comment()
}

// comment tells whether a comment begins here.
func (p *parser) comment() bool {
	return p.peek() == '#' && (p.at == 0 || p.blankAt(p.at-1))
}

// skip goes to the next token, over spaces, comments and newlines.
func (p *parser) skip() {
	for {
		p.spaces()
		if p.comment() {
			if n := strings.IndexByte(p.text[p.at:], '\n'); n >= 0 {
				p.at += n
			} else {
				p.at = len(p.text)
			}
		}
		if p.peek() != '\n' {
			return
		}
		p.at++
	}
}

// enter counts a level of nesting.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxDepth {
		return fmt.Errorf("nested more than %d deep", maxDepth)
	}
	return nil
}

// emit appends a string as JSON.
func (p *parser) emit(s string) {
	b, _ := json.Marshal(s) // a string always has JSON
	p.out = append(p.out, b...)
}
