package nlconn

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable replaces what must not reach a terminal or a quoted text by '?':
// control characters, quotes, backslashes and broken UTF-8.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if IsHostile(r) {
			return '?'
		}
		return r
	}, s)
}

// IsHostile reports whether a terminal or a quoted text does not show a rune as it is.
func IsHostile(r rune) bool {
	return r == utf8.RuneError || r == '"' || r == '\\' || !unicode.IsPrint(r)
}

// UntilNUL is the text before the first NUL.
func UntilNUL(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
