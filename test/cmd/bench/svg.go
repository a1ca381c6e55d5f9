package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The geometry of the chart, in SVG user units.
const (
	chartWidth  = 760
	labelWidth  = 100 // left of the bars
	valueWidth  = 150 // right of the longest bar
	barHeight   = 16
	barGap      = 4
	groupGap    = 14
	panelGap    = 30
	titleHeight = 28
	textDrop    = 12 // from the top of a bar to the base line of its text
)

// panel is a set of bars with a common scale.
type panel struct {
	Title  string
	Groups []group
}

// group is one operation.
type group struct {
	Label string
	Bars  []bar
}

// bar is one value; Class selects the colour.
type bar struct {
	Class string
	Value float64
	Text  string
}

// The colour classes of the style sheet.
const (
	classOurs = "ours"
	classPeer = "peer"
	classNFT  = "nft"
)

// panels arranges the results; a section that did not run has no bars.
func panels(res *results) []panel {
	var list []panel
	if latency := latencyPanel(res); len(latency.Groups) > 0 {
		list = append(list, latency)
	}
	if c := res.Chain; c != nil {
		list = append(list, panel{
			Title:  "bridge + portmap + firewall + tuning, median in milliseconds",
			Groups: []group{{"ADD", timeBars(c.Add, classPeer)}, {"DEL", timeBars(c.Del, classPeer)}},
		})
	}
	if beside := publishedPanel(res.Published); len(beside.Groups) > 0 {
		list = append(list, beside)
	}
	if other := interfacesPanel(res.Interfaces); len(other.Groups) > 0 {
		list = append(list, other)
	}
	if p := res.Parallel; p != nil {
		list = append(list, panel{
			Title: fmt.Sprintf("Containers per second, %d at a time (longer is better)", p.AtATime),
			Groups: []group{
				{"ADD", rateBars(p.Add)},
				{"DEL", rateBars(p.Del)},
			},
		})
	}
	return list
}

// latencyPanel shows both backends of the reference, and cnibox, which has one.
func latencyPanel(res *results) panel {
	p := panel{Title: "One call, median in milliseconds (shorter is better)"}
	if v := res.Version; v != nil {
		p.Groups = append(p.Groups, group{"VERSION", timeBars(*v, classPeer)})
	}
	for _, verb := range []struct {
		label string
		of    func(*bridgeResult) compared
	}{
		{"ADD", func(b *bridgeResult) compared { return b.Add }},
		{"CHECK", func(b *bridgeResult) compared { return b.Check }},
		{"DEL", func(b *bridgeResult) compared { return b.Del }},
	} {
		var bars []bar
		if res.Bridge != nil {
			bars = timeBars(verb.of(res.Bridge), classPeer)
		}
		if res.NFT != nil {
			both := timeBars(verb.of(res.NFT), classNFT)
			if bars != nil {
				both = both[1:]
			}
			bars = append(bars, both...)
		}
		if bars != nil {
			p.Groups = append(p.Groups, group{verb.label, bars})
		}
	}
	return p
}

// publishedPanel shows how the list's ADD grows with the number of published ports.
func publishedPanel(list []publishedResult) panel {
	p := panel{Title: "ADD of that list by the number of published ports, median in milliseconds"}
	for _, r := range list {
		p.Groups = append(p.Groups, group{strconv.Itoa(r.Ports), timeBars(r.Add, classPeer)})
	}
	return p
}

// interfacesPanel shows the other interface plugins, in the family in which no side waits.
func interfacesPanel(list []interfaceResult) panel {
	p := panel{Title: "ADD of other interfaces with an IPv4 address, median in milliseconds"}
	for _, i := range list {
		if i.Family == familyIPv4 {
			p.Groups = append(p.Groups, group{i.Plugin + i.With, timeBars(i.Add, classPeer)})
		}
	}
	return p
}

func timeBars(c compared, peerClass string) []bar {
	return []bar{
		{classOurs, float64(c.Ours.P50), ms(c.Ours.P50) + gain(c.speedup())},
		{peerClass, float64(c.Peer.P50), ms(c.Peer.P50)},
	}
}

func rateBars(r rates) []bar {
	return []bar{
		{classOurs, r.Ours, perSecond(r.Ours) + gain(r.speedup())},
		{classPeer, r.Peer, perSecond(r.Peer)},
	}
}

// gain returns the text behind our own bar, or nothing for a small difference.
func gain(speedup float64) string {
	if speedup < 1.5 {
		return ""
	}
	return fmt.Sprintf(" (%.1f ×)", speedup)
}

// renderSVG draws the chart. It is empty if no section that it shows was run. The background is transparent and the colours follow
// the reader's preference for light or dark.
func renderSVG(res *results) string {
	list := panels(res)
	if len(list) == 0 {
		return ""
	}
	var body strings.Builder
	y := drawLegend(&body, legend(list, res.Reference), 4)
	for _, p := range list {
		y = drawPanel(&body, p, y+panelGap/2)
	}
	return fmt.Sprintf(svgHead, chartWidth, y+4, chartWidth, y+4, res.Reference) + body.String() + "</svg>\n"
}

const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title">
<title id="title">cnibox compared with the reference CNI plugins %s</title>
<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.head { font-weight: 600; font-size: 14px; }
.value { font-variant-numeric: tabular-nums; }
.ours { fill: #0a7d5a; } .peer { fill: #8c959f; } .nft { fill: #c4a15a; }
.axis { stroke: #8c959f; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.ours { fill: #2fc58f; } .peer { fill: #7d8590; } .nft { fill: #a58545; }
}
</style>
`

// legendEntry describes a colour.
type legendEntry struct{ Class, Text string }

// legend lists the classes that the chart uses. reference is the release of the reference plugins.
func legend(list []panel, reference string) []legendEntry {
	used := map[string]bool{}
	for _, p := range list {
		for _, g := range p.Groups {
			for _, b := range g.Bars {
				used[b.Class] = true
			}
		}
	}
	var entries []legendEntry
	for _, e := range []legendEntry{
		{classOurs, "cnibox"}, {classPeer, "reference " + reference + ", iptables backend"}, {classNFT, "reference " + reference + ", nftables backend"},
	} {
		if used[e.Class] {
			entries = append(entries, e)
		}
	}
	return entries
}

// drawLegend draws at y and returns the y below it.
func drawLegend(b *strings.Builder, entries []legendEntry, y int) int {
	x := 0
	for _, e := range entries {
		fmt.Fprintf(b, "<rect class=%q x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" rx=\"2\"/>\n", e.Class, x, y)
		drawText(b, "legend", "start", x+18, y+11, e.Text)
		x += 18 + 7*len(e.Text) + 20
	}
	return y + 12
}

// drawPanel draws at y and returns the y below it.
func drawPanel(b *strings.Builder, p panel, y int) int {
	drawText(b, "head", "start", 0, y+textDrop+2, p.Title)
	y += titleHeight
	top := y
	longest := 0.0
	for _, g := range p.Groups {
		for _, bar := range g.Bars {
			longest = math.Max(longest, bar.Value)
		}
	}
	for _, g := range p.Groups {
		drawText(b, "label", "end", labelWidth-10, y+textDrop, g.Label)
		for _, bar := range g.Bars {
			width := ratio(bar.Value, longest) * float64(chartWidth-labelWidth-valueWidth)
			fmt.Fprintf(b, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n",
				bar.Class, labelWidth, y, math.Max(width, 1), barHeight)
			drawText(b, "value", "start", labelWidth+int(width)+8, y+textDrop, bar.Text)
			y += barHeight + barGap
		}
		y += groupGap - barGap
	}
	fmt.Fprintf(b, "<line class=\"axis\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n", labelWidth, top-4, labelWidth, y-groupGap+4)
	return y
}

func drawText(b *strings.Builder, class, anchor string, x, y int, text string) {
	fmt.Fprintf(b, "<text class=%q x=\"%d\" y=\"%d\" text-anchor=%q>", class, x, y, anchor)
	// A strings.Builder never fails.
	_ = xml.EscapeText(b, []byte(text))
	b.WriteString("</text>\n")
}
