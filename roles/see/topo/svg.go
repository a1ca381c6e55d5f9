package topo

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed svg.css
var svgStyle string

// The measures of a drawing in pixels. A character of the font has 7.3 at most.
const (
	drawingWidth, gutter, pad, rowHeight = 1400, 24, 8, 17
	columns, charTenths                  = 3, 73
)

// drawing is an SVG whose boxes are placed row by row.
type drawing struct{ shapes, texts strings.Builder }

// SVG returns a drawing that needs nothing else.
func (t *Topology) SVG() string {
	var d drawing
	height := d.place(t.graph(), 0, gutter, false)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d">
<style>%[3]s</style>
<rect class="paper" width="%[1]d" height="%[2]d"/>
%[4]s%[5]s</svg>
`, drawingWidth+gutter, height, svgStyle, d.shapes.String(), d.texts.String())
}

// place draws boxes from y on, those without others below in columns, and returns the lower edge. Lines lead to them from the box above.
// A box with others below has its properties in one line.
func (d *drawing) place(all []*node, x, y int, isBelow bool) int {
	const gap = 12
	top, bottom, column := y-gap, y, 0
	for _, n := range all {
		if column == columns || len(n.children) > 0 {
			y, column = bottom, 0
		}
		span := (drawingWidth - x) / columns
		left, width, inside := x+gutter+column*span, span-gutter, n.lines
		column++
		if len(n.children) > 0 {
			width, column, inside = drawingWidth-left, columns, []string{strings.Join(n.lines, " · ")}
		}
		from := d.text(n.edge, left, y, width)
		to := d.text(inside, left+pad, from+pad/2, width-2*pad) + pad/2
		if isBelow {
			fmt.Fprintf(&d.shapes, `<path d="M%d %dV%dH%d"/>`+"\n", left-gutter/2, top, from+(rowHeight+pad)/2, left)
		}
		fmt.Fprintf(&d.shapes, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="4"><title>%s</title></rect>`+"\n",
			n.class, left, from, width, to-from, Escaped(n.details))
		if len(n.children) > 0 {
			to = d.place(n.children, left, to+gap, true)
		}
		bottom = max(bottom, to+gap)
	}
	return bottom
}

// text writes lines, which it wraps, and returns the lower edge.
func (d *drawing) text(all []string, x, y, width int) int {
	for _, line := range all {
		for _, part := range wrapped(line, width*10/charTenths) {
			y += rowHeight
			fmt.Fprintf(&d.texts, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", lineClass(line), x, y-5, Escaped(part))
		}
	}
	return y
}

// wrapped breaks a text into parts of at most width characters, at spaces if there are any.
func wrapped(text string, width int) (parts []string) {
	rest := []rune(text)
	for len(rest) > width {
		end := width
		for end > width/2 && rest[end] != ' ' {
			end--
		}
		if rest[end] != ' ' {
			end = width
		}
		parts, rest = append(parts, string(rest[:end])), rest[end:]
	}
	return append(parts, string(rest))
}
