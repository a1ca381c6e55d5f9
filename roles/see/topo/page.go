package topo

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

//go:embed page.css
var style string

//go:embed page.js
var script string

// Escaped returns a text without markup, for XML and HTML. U+FFFD replaces what XML forbids. The package html would link the names of all
// characters, 60 kB.
func Escaped(text string) string {
	const lastForbidden = 0xFFFF // the other is before it
	text = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == lastForbidden || r == lastForbidden-1 {
			return utf8.RuneError
		}
		return r
	}, text)
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(text)
}

// HTML returns one page that needs nothing else: the graph, a search, and the properties of the box that is chosen.
func (t *Topology) HTML() string { return Page(t.Node, t.Content(), false) }

// Content returns the part of the page that changes with the node.
func (t *Topology) Content() string {
	problems := 0
	for i := range t.Attachments {
		problems += min(len(t.Attachments[i].Problems), 1)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<span>%d devices, %d attachments, %d with problems</span>\n", len(t.Devices), len(t.Attachments), problems)
	writeList(&b, t.graph())
	return b.String()
}

// writeList writes boxes, and below each those that are connected to it.
func writeList(b *strings.Builder, all []*node) {
	if len(all) == 0 {
		return
	}
	b.WriteString("<ul>\n")
	for _, n := range all {
		item := "<li>"
		if len(n.children) > 0 {
			item = `<li class="wide">`
		}
		b.WriteString(item)
		writeLines(b, n.edge)
		writeButton(b, "box "+n.class, n.details)
		writeLines(b, n.lines)
		b.WriteString(n.drawing + "</button>")
		writeList(b, n.children)
		b.WriteString("</li>\n")
	}
	b.WriteString("</ul>\n")
}

func writeLines(b *strings.Builder, all []string) {
	for _, line := range all {
		fmt.Fprintf(b, `<span class="%s">%s</span>`, lineClass(line), Escaped(line))
	}
}

// writeButton begins a box that the page's script shows the details of.
func writeButton(b *strings.Builder, class, details string) {
	fmt.Fprintf(b, `<button class="%s" data-details="%s">`, class, Escaped(details))
}

// Page returns a page around a content. A live page replaces its content by the events of the server that sent it.
func Page(node, content string, live bool) string {
	mark := ""
	if live {
		mark = ` <span id="live"></span>`
	}
	return fmt.Sprintf(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>%[1]s</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="%[2]s">
<style>%[3]s</style>
<header><h1>%[1]s</h1>%[4]s
<input id="search" type="search" aria-label="search" placeholder="pod, container, address, network" autofocus> <span id="count"></span>
<pre id="details">Choose a box.</pre></header>
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
