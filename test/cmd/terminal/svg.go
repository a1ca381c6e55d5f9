package main

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

const (
	columns               = 112
	lineHeight, charWidth = 19, 8.4
	margin                = 16
)

// escape matches a change of colour (SGR, ECMA-48).
var escape = regexp.MustCompile(`\x1b\[([0-9;]*)m`)

// classes are the styles of the picture for the codes that cnibox prints.
func classes() map[string]string { return map[string]string{"1": "b", "31": "r", "32": "g", "33": "y"} }

// span is a text in one style.
type span struct{ class, text string }

// spans splits a line at its changes of colour.
func spans(line string) (out []span) {
	class, at := "", 0
	for _, m := range escape.FindAllStringSubmatchIndex(line, -1) {
		out = append(out, span{class, line[at:m[0]]})
		class, at = classes()[line[m[2]:m[3]]], m[1]
	}
	return append(out, span{class, line[at:]})
}

// wrap breaks a line as a terminal does.
func wrap(line []span) (out [][]span) {
	var row []span
	free := columns
	for _, s := range line {
		text := []rune(s.text)
		for len(text) > free {
			row = append(row, span{s.class, string(text[:free])})
			out, row, text, free = append(out, row), nil, text[free:], columns
		}
		row = append(row, span{s.class, string(text)})
		free -= len(text)
	}
	return append(out, row)
}

// draw returns the picture of a terminal.
func draw(lines []string) string {
	var rows [][]span
	for _, line := range lines {
		rows = append(rows, wrap(spans(line))...)
	}
	width, height := columns*charWidth+2*margin, len(rows)*lineHeight+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" aria-label="A session with cnibox on a terminal">
<style>
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d0d7de;white-space:pre}
.b{fill:#fff;font-weight:bold}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, width, height, width, height)
	for i, row := range rows {
		fmt.Fprintf(&b, `<text x="%d" y="%d" xml:space="preserve">`, margin, margin+i*lineHeight+14)
		for _, s := range row {
			switch text := html.EscapeString(s.text); {
			case s.text == "":
			case s.class == "":
				b.WriteString(text)
			default:
				fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, s.class, text)
			}
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}
