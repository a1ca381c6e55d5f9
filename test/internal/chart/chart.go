// Package chart draws measurements as SVG: curves over logarithmic scales.
package chart

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Lines is a chart of curves. Both scales are logarithmic: linear growth is a straight line, quadratic growth a steeper one.
type Lines struct {
	Title string
	// At has the values of the horizontal axis in ascending order, and Label its text.
	At     []int
	Label  string
	Curves []Curve
}

// Curve is one line.
type Curve struct {
	Name, Colour string
	// Values has a positive number for each element of At, or for the first of them.
	Values []float64
	// Dashed marks a curve that was not measured here.
	Dashed bool
}

// The geometry of one chart.
const (
	width, height  = 720, 400
	left, top      = 60, 40
	right, bottom  = 150, 50
	innerW, innerH = width - left - right, height - top - bottom
	lineHeight     = 14
)

const style = `<style>text{fill:#24292f}.g{stroke:#d0d7de}path{fill:none;stroke-width:2}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#30363d}}</style>` + "\n"

// SVG returns a document with the charts one below the other.
func SVG(charts ...Lines) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n"+style, width, len(charts)*height)
	for i, c := range charts {
		c.draw(&b, i*height)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw draws a chart whose upper edge is at y0.
func (l Lines) draw(b *strings.Builder, y0 int) {
	least, most := l.bounds()
	x := func(n int) float64 {
		return left + innerW*math.Log(float64(n)/float64(l.At[0]))/math.Log(float64(l.At[len(l.At)-1])/float64(l.At[0]))
	}
	y := func(v float64) float64 {
		return float64(y0) + top + innerH*(1-math.Log10(v/least)/math.Log10(most/least))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14">%s</text>`+"\n", left, y0+22, escape(l.Title))
	for v := least; v < most*1.1; v *= 10 {
		fmt.Fprintf(b, `<line class="g" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%.10g</text>`+"\n",
			left, left+innerW, y(v), y(v), left-6, y(v)+4, v)
	}
	for _, n := range l.At {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(n), y0+height-bottom+18, n)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", left+innerW/2, y0+height-12, escape(l.Label))
	// From the highest to the lowest, so that the names do not cover each other.
	curves := slices.SortedFunc(slices.Values(l.Curves), func(a, b Curve) int { return cmp.Compare(b.last(), a.last()) })
	below := 0.0
	for _, c := range curves {
		var d strings.Builder
		for i, v := range c.Values {
			fmt.Fprintf(&d, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == 0], x(l.At[i]), y(v))
		}
		dash := ""
		if c.Dashed {
			dash = ` stroke-dasharray="6 4"`
		}
		below = max(y(c.last())+4, below+lineHeight)
		fmt.Fprintf(b, `<path d="%s" stroke="%s"%s/><text x="%d" y="%.1f" style="fill:%s">%s</text>`+"\n",
			d.String(), c.Colour, dash, left+innerW+8, below, c.Colour, escape(c.Name))
	}
}

// bounds returns the powers of ten around all values.
func (l Lines) bounds() (least, most float64) {
	least, most = math.Inf(1), 0
	for _, c := range l.Curves {
		least, most = min(least, slices.Min(c.Values)), max(most, slices.Max(c.Values))
	}
	least = math.Pow10(int(math.Floor(math.Log10(least))))
	return least, max(math.Pow10(int(math.Ceil(math.Log10(most)))), 10*least)
}

func (c Curve) last() float64 { return c.Values[len(c.Values)-1] }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder never fails
	return b.String()
}
