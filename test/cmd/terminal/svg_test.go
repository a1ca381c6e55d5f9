package main

import (
	"strings"
	"testing"
)

// TestDraw: colours become styles, a long line is broken as on a terminal, and text of a program is no markup.
func TestDraw(t *testing.T) {
	got := draw([]string{"\x1b[31merror\x1b[0m <b>&", strings.Repeat("x", columns+1)})
	for _, want := range []string{`<tspan class="r">error</tspan> &lt;b&gt;&amp;</text>`, ">" + strings.Repeat("x", columns) + "</text>", ">x</text>"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Error("an escape sequence is left")
	}
}
