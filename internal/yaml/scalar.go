package yaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// indicator reports a plain scalar that begins with a sign that means something else.
func (p *parser) indicator(flow bool) error {
	c := p.peek()
	switch {
	case c == '\t':
		return errTab
	case c == '&' || c == '*':
		return errors.New("anchors and aliases (& and *) are not supported: write the value out, or quote it")
	case c == '!':
		return errors.New("tags (!) are not supported: quote the value if it begins so")
	case strings.IndexByte(",[]{}#|>@`\"'%?:", c) >= 0:
		return fmt.Errorf("a value cannot begin with %q: quote it", c)
	case c == '-' && (p.blankAt(p.at+1) || flow && strings.IndexByte(",[]{}", p.byteAt(p.at+1)) >= 0):
		return fmt.Errorf("a value cannot begin with %q: quote it", c)
	}
	return nil
}

// plainLine reads what of a plain scalar stands on this line, without blanks at its end.
func (p *parser) plainLine(flow bool) string {
	begin := p.at
	for p.at < len(p.text) {
		c := p.text[p.at]
		if c == '\n' || c == ':' && (p.blankAt(p.at+1) || flow && strings.IndexByte(",[]{}", p.byteAt(p.at+1)) >= 0) ||
			flow && strings.IndexByte(",[]{}", c) >= 0 || p.at > begin && p.comment() {
			break
		}
		p.at++
	}
	line := strings.TrimRight(p.text[begin:p.at], " \t")
	p.at = begin + len(line)
	return line
}

// plain reads a scalar without quotes in a collection whose column is parent.
// Lines that are further indented continue it.
func (p *parser) plain(parent int) error {
	if err := p.indicator(false); err != nil {
		return err
	}
	s := p.plainLine(false)
	for {
		end := p.at
		p.spaces()
		if p.peek() != '\n' {
			p.at = end
			break
		}
		breaks := p.breaks()
		if p.done() || p.column() <= parent || p.peek() == '#' {
			p.at = end
			break
		}
		if p.peek() == '\t' {
			return errTab
		}
		line := p.plainLine(false)
		if p.spaces(); p.peek() == ':' {
			return errors.New("a key inside a value of several lines: is it indented too far?")
		}
		s += fold(breaks) + line
	}
	return p.scalar(s)
}

// breaks goes over line breaks and blanks and counts the breaks.
func (p *parser) breaks() int {
	n := 0
	for {
		p.spaces()
		if p.peek() != '\n' {
			return n
		}
		p.at++
		n++
	}
}

// fold is what so many line breaks are in a folded scalar.
func fold(breaks int) string {
	if breaks == 1 {
		return " "
	}
	return strings.Repeat("\n", breaks-1)
}

// Words that are no text, whoever reads them.
const (
	nulls  = " ~ null Null NULL "
	truths = " true True TRUE false False FALSE "
	// doubtful are true or false to YAML 1.1 and text to 1.2.
	doubtful = " yes Yes YES no No NO on On ON off Off OFF "
)

// isWord tells whether s is one of words.
func isWord(words, s string) bool {
	return strings.Contains(words, " "+s+" ") && !strings.Contains(s, " ")
}

// scalar appends a plain scalar: null, a truth value, a number or a string.
func (p *parser) scalar(s string) error {
	switch {
	case s == "" || isWord(nulls, s):
		p.out = append(p.out, "null"...)
	case isWord(truths, s):
		p.out = append(p.out, strings.ToLower(s)...)
	case isWord(doubtful, s):
		return fmt.Errorf("%s is true or false to some and text to others: quote it, or write true or false", s)
	case !isNumeric(s):
		p.emit(s)
	case isJSONNumber(s):
		p.out = append(p.out, s...)
	default:
		return fmt.Errorf("%s is not the same number to everybody: quote it if it is text", s)
	}
	return nil
}

// plainKey reports a key without quotes that is not text to everybody.
func plainKey(s string) error {
	switch {
	case s == "<<":
		return errors.New("merge keys (<<) are not supported")
	case s == "" || isWord(nulls, s) || isWord(truths, s) || isWord(doubtful, s) || isNumeric(s):
		return fmt.Errorf("key %s is not text to everybody: quote it", s)
	}
	return nil
}

// isNumeric tells whether some YAML version takes a plain scalar for a number.
func isNumeric(s string) bool {
	s = strings.ToLower(strings.TrimLeft(s, "+-"))
	if s == ".inf" || s == ".nan" {
		return true
	}
	s = strings.ReplaceAll(s, "_", "")
	for _, prefix := range []string{"0x", "0o", "0b"} {
		if digits, ok := strings.CutPrefix(s, prefix); ok {
			return digits != "" && strings.Trim(digits, "0123456789abcdef") == ""
		}
	}
	mantissa, exponent, found := strings.Cut(s, "e")
	if exponent = strings.TrimLeft(exponent, "+-"); found && (exponent == "" || !isDigits(exponent)) {
		return false
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	return whole+fraction != "" && isDigits(whole) && isDigits(fraction)
}

// isJSONNumber tells whether JSON has the number too, and programs can hold it.
func isJSONNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && json.Valid([]byte(s))
}

func isDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// literal reads a block scalar, | or >, in a collection whose column is parent.
func (p *parser) literal(parent int) error {
	folded := p.peek() == '>'
	p.at++
	chomp, indent := byte(0), 0
	for range 2 {
		switch c := p.peek(); {
		case chomp == 0 && (c == '-' || c == '+'):
			chomp = c
			p.at++
		case indent == 0 && c >= '1' && c <= '9':
			indent = max(parent, 0) + int(c-'0')
			p.at++
		}
	}
	p.spaces()
	if !p.lineEnd() {
		return p.unexpected(" after | or >")
	}
	head, body, _ := strings.Cut(p.text[p.at:], "\n")
	p.at = min(p.at+len(head)+1, len(p.text))
	if indent == 0 {
		var err error
		if indent, err = detect(body, parent); err != nil {
			return err
		}
	}
	var lines []string
	whole := false
	for p.at < len(p.text) {
		line, _, ended := strings.Cut(p.text[p.at:], "\n")
		blank := strings.Trim(line, " ") == ""
		if !blank && len(line)-len(strings.TrimLeft(line, " ")) < indent || p.done() {
			break
		}
		if text := line[min(indent, len(line)):]; ended || text != "" {
			lines = append(lines, text)
			whole = ended
		}
		p.at = min(p.at+len(line)+1, len(p.text))
	}
	if strings.HasPrefix(strings.TrimLeft(p.rest(), " "), "\t") {
		return errTab
	}
	p.emit(chomped(lines, folded, chomp, whole))
	return nil
}

// detect finds the indentation of a block scalar by its first line with text.
func detect(body string, parent int) (int, error) {
	least := max(parent+1, 1)
	widest := 0
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		text := strings.TrimLeft(line, " ")
		switch n := len(line) - len(text); {
		case text == "":
			widest = max(widest, n)
		case n < least:
			return max(least, widest), nil
		case text[0] == '\t':
			return 0, errTab
		case widest > n:
			return 0, errors.New("an empty line that is indented further than the text below it")
		default:
			return n, nil
		}
	}
	return max(least, widest), nil
}

// chomped joins the lines of a block scalar; whole tells that the last one ends in a newline.
func chomped(lines []string, folded bool, chomp byte, whole bool) string {
	end := len(lines)
	for end > 0 && lines[end-1] == "" {
		end--
	}
	var b strings.Builder
	blankBefore, pending := true, 0 // whether the last line with text was more indented; breaks since it
	for i, line := range lines[:end] {
		if line == "" {
			pending++
			continue
		}
		blank := line[0] == ' ' || line[0] == '\t'
		switch {
		case i == pending: // nothing but empty lines before
			b.WriteString(strings.Repeat("\n", pending))
		case folded && !blank && !blankBefore && pending == 0:
			b.WriteByte(' ')
		case folded && !blank && !blankBefore:
			b.WriteString(strings.Repeat("\n", pending))
		default:
			b.WriteString(strings.Repeat("\n", pending+1))
		}
		b.WriteString(line)
		blankBefore, pending = blank, 0
	}
	if end > 0 && chomp != '-' && whole {
		b.WriteByte('\n')
	}
	if chomp == '+' {
		b.WriteString(strings.Repeat("\n", len(lines)-end))
	}
	return b.String()
}
