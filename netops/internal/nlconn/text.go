package nlconn

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable replaces the characters that must not reach a terminal or a quoted
// text by '?': control characters, quotes, backslashes and invalid UTF-8.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if IsHostile(r) {
			return '?'
		}
		return r
	}, s)
}

// IsHostile reports whether a rune must not reach a terminal or a quoted text.
func IsHostile(r rune) bool {
	return r == utf8.RuneError || r == '"' || r == '\\' || !unicode.IsPrint(r)
}
