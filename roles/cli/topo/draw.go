package topo

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
)

//go:embed page.css
var style string

//go:embed page.js
var script string

// The measures of a drawing in pixels.
const (
	row, boxHeight        = 26, 22
	bareWidth, groupX     = 220, 280
	columns, attachWidth  = 4, 240
	groupWidth, indention = columns * attachWidth, 12
	textPad               = 8
)

// drawing is an SVG whose boxes are placed row by row.
type drawing struct {
	boxes, lines strings.Builder
}

// box draws a box with a text. details are shown by the page's script.
func (d *drawing) box(class string, x, y, width int, text, details string) {
	fmt.Fprintf(&d.boxes, `<g class="%s" data-details="%[2]s"><svg x="%d" y="%d" width="%d" height="%d"><rect x="1" y="1" width="%d" height="%d" rx="4"/><text x="%d" y="%d">%s</text></svg><title>%[2]s</title></g>`+"\n",
		class, Escaped(details), x, y, width, boxHeight, width-2, boxHeight-2, textPad, boxHeight-7, Escaped(text))
}

// Escaped returns a text without markup, for XML and HTML.
func Escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a builder takes all
	return b.String()
}

// line draws a line from the right side of one box to the left side of another.
func (d *drawing) line(x1, y1, x2, y2 int) {
	mid := (x1 + x2) / 2
	fmt.Fprintf(&d.lines, `<path d="M%d %dC%d %d %d %d %d %d"/>`+"\n", x1, y1+boxHeight/2, mid, y1+boxHeight/2, mid, y2+boxHeight/2, x2, y2+boxHeight/2)
}

// svg draws the devices without attachments on the left, and the others on the right, each above its attachments, of
// which those with problems are first.
func (t *Topology) svg(attributes string) string {
	var d drawing
	bare, used := t.groups()
	for i, g := range bare {
		d.box(class(!g.device.Up, "device"), 0, i*row, bareWidth, g.device.Name, g.device.Name+"\n"+g.device.details())
	}
	y := 0
	for _, g := range used {
		title, details, down := g.title(), g.title(), false
		if g.device != nil {
			title = strings.Join(append([]string{title}, texts(g.device.Addresses)...), "  ")
			details, down = details+"\n"+g.device.details(), !g.device.Up
			for i, other := range bare {
				if g.device.Lower == other.device.Name || other.device.Lower == g.device.Name {
					d.line(bareWidth, i*row, groupX, y)
				}
			}
		}
		d.box(class(down, "device"), groupX, y, groupWidth, title, details)
		sorting.Stable(g.attachments, func(a, b *Attachment) int { return min(len(b.Problems), 1) - min(len(a.Problems), 1) })
		for i, a := range g.attachments {
			if i%columns == 0 {
				y += row
			}
			text := strings.Join(append([]string{a.name()}, texts(a.Addresses)...), "  ")
			d.box(class(len(a.Problems) > 0, "attachment"), groupX+indention+i%columns*attachWidth, y, attachWidth-indention, text,
				strings.Join(append([]string{a.name(), a.details()}, a.Problems...), "\n"))
		}
		y += row + row/2
	}
	return d.svg(attributes, max(y, len(bare)*row))
}

// svg returns the drawing.
func (d *drawing) svg(attributes string, height int) string {
	const width, margin = groupX + groupWidth, 4
	height += 2 * margin
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" %s viewBox=\"-4 -4 %d %d\" width=\"%d\" height=\"%d\">\n<g class=\"lines\">\n%s</g>\n%s</svg>\n",
		attributes, width+2*margin, height, width+2*margin, height, d.lines.String(), d.boxes.String())
}

// class returns a box's classes.
func class(problem bool, kind string) string {
	if problem {
		return kind + " problem"
	}
	return kind
}

// SVG returns a drawing that needs nothing else.
func (t *Topology) SVG() string {
	s := t.svg(`font-family="sans-serif" font-size="12"`)
	head := strings.Index(s, "\n") + 1
	return s[:head] + "<style>" + style + "</style>\n" + s[head:]
}

// HTML returns one page that needs nothing else: the drawing, a search, and the properties of what is clicked.
func (t *Topology) HTML() string { return Page(t.Node, t.Content(), false) }

// Content returns the part of the page that changes with the node.
func (t *Topology) Content() string {
	problems := 0
	for i := range t.Attachments {
		problems += min(len(t.Attachments[i].Problems), 1)
	}
	return fmt.Sprintf("<span>%d devices, %d attachments, %d with problems</span>\n%s", len(t.Devices), len(t.Attachments), problems, t.svg(""))
}

// Page returns a page around a content. A live page replaces its content by the events of the server that sent it.
func Page(node, content string, live bool) string {
	mark := ""
	if live {
		mark = ` <span id="live"></span>`
	}
	return fmt.Sprintf(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>%[1]s</title>
<meta http-equiv="Content-Security-Policy" content="%[2]s">
<style>%[3]s</style>
<header><h1>%[1]s</h1>%[4]s
<input id="search" type="search" placeholder="pod, container, address, network" autofocus> <span id="count"></span></header>
<pre id="details">Click on a box.</pre>
<main id="content">%[5]s</main>
<script>%[6]s</script>
</html>
`, Escaped(node), Policy(live), style, mark, content, script)
}

// Policy returns the Content-Security-Policy of a page: its own script and style, and for a live page its own server.
func Policy(live bool) string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	policy := "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(script) + "; base-uri 'none'; form-action 'none'"
	if live {
		policy += "; connect-src 'self'"
	}
	return policy
}
