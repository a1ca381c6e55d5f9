package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
)

// elements decodes a document strictly and returns its start elements; an error means that the document is not well formed.
func elements(t *testing.T, doc string) []xml.StartElement {
	t.Helper()
	var list []xml.StartElement
	d := xml.NewDecoder(strings.NewReader(doc))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("decode chart: %v\n%s", err, doc)
		}
		if e, ok := token.(xml.StartElement); ok {
			list = append(list, e)
		}
	}
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func TestSVGIsWellFormedAndInside(t *testing.T) {
	chart := renderSVG(exampleResults())
	if n := strings.Count(chart, "v1.2.3"); n != 3 {
		t.Errorf("the release of the reference is named %d times, want 3: in the title and for two colours", n)
	}
	list := elements(t, chart)
	if len(list) == 0 || list[0].Name.Local != "svg" || list[0].Name.Space != "http://www.w3.org/2000/svg" {
		t.Fatalf("no svg root in %v", list)
	}
	height, err := strconv.Atoi(attr(list[0], "height"))
	if err != nil {
		t.Fatal(err)
	}
	bars := 0
	for _, e := range list {
		if e.Name.Local != "rect" || attr(e, "width") == "12" {
			continue
		}
		bars++
		x, errX := strconv.ParseFloat(attr(e, "x"), 64)
		w, errW := strconv.ParseFloat(attr(e, "width"), 64)
		y, errY := strconv.Atoi(attr(e, "y"))
		if err := errors.Join(errX, errW, errY); err != nil {
			t.Fatal(err)
		}
		if w < 1 || x+w > chartWidth-valueWidth || y+barHeight > height {
			t.Errorf("bar at %v,%v of width %v leaves a chart of %d x %d", x, y, w, chartWidth, height)
		}
	}
	// VERSION 2; ADD, CHECK and DEL 3 each; two other interfaces of 2; two rates of 2.
	if bars != 19 {
		t.Errorf("%d bars, want 19", bars)
	}
}

func TestSVGScale(t *testing.T) {
	var b strings.Builder
	drawPanel(&b, panel{Title: "a & b <c>", Groups: []group{{"x", []bar{{classOurs, 1, "1"}, {classPeer, 4, "4"}}}}}, 0)
	full := chartWidth - labelWidth - valueWidth
	list := elements(t, "<g>"+b.String()+"</g>")
	var widths []string
	for _, e := range list {
		if e.Name.Local == "rect" {
			widths = append(widths, attr(e, "width"))
		}
	}
	want := []string{strconv.FormatFloat(float64(full)/4, 'f', 1, 64), strconv.FormatFloat(float64(full), 'f', 1, 64)}
	if len(widths) != 2 || widths[0] != want[0] || widths[1] != want[1] {
		t.Errorf("widths %v, want %v", widths, want)
	}
}

func TestSVGWithoutSections(t *testing.T) {
	if got := renderSVG(&results{}); got != "" {
		t.Errorf("chart of nothing: %q", got)
	}
	onlyNFT := &results{NFT: exampleResults().NFT}
	if got := strings.Count(renderSVG(onlyNFT), `class="ours"`); got != 4 {
		t.Errorf("%d marks of ours, want 3 bars and 1 legend entry", got)
	}
}
