package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// decode decodes a document strictly and returns its texts and the paths of its curves.
func decode(t *testing.T, doc string) (texts, paths []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(doc))
	inText := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts, paths
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		switch e := token.(type) {
		case xml.StartElement:
			inText = e.Name.Local == "text"
			for _, a := range e.Attr {
				if e.Name.Local == "path" && a.Name.Local == "d" {
					paths = append(paths, a.Value)
				}
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(e)); inText && text != "" {
				texts = append(texts, text)
			}
		}
	}
}

func TestSVG(t *testing.T) {
	l := Lines{Title: "a & b", At: []int{1, 10, 100}, Label: "n", Curves: []Curve{
		{Name: "low", Values: []float64{1, 2}}, // measured in part
		{Name: "high", Values: []float64{10, 100, 1000}, Dashed: true},
	}}
	doc := SVG(l, l)
	texts, paths := decode(t, doc)
	const one = "a & b|1|10|100|1000|1|10|100|n|high|low"
	if got := strings.Join(texts, "|"); got != one+"|"+one {
		t.Errorf("texts %q, want twice %q", got, one)
	}
	if len(paths) != 4 {
		t.Fatalf("%d curves, want 4", len(paths))
	}
	// On two logarithmic scales a power is a straight line, from the lower left to the upper right corner.
	if want := fmt.Sprintf("M%.1f %.1fL%.1f %.1fL%.1f %.1f", float64(left), top+innerH*2.0/3, left+innerW/2.0, top+innerH/3.0, float64(left+innerW), float64(top)); paths[0] != want {
		t.Errorf("path %q, want %q", paths[0], want)
	}
	if want := fmt.Sprintf("M%.1f %.1f", float64(left), float64(height+top+innerH)); !strings.HasPrefix(paths[3], want) || strings.Count(paths[3], "L") != 1 {
		t.Errorf("path %q of the second chart, want %q and one more point", paths[3], want)
	}
	if n := strings.Count(doc, "stroke-dasharray"); n != 2 {
		t.Errorf("%d dashed curves, want 2", n)
	}
}

// TestEqualValues: all values are the same power of ten.
func TestEqualValues(t *testing.T) {
	_, paths := decode(t, SVG(Lines{At: []int{1, 2}, Curves: []Curve{{Values: []float64{10, 10}}}}))
	if len(paths) != 1 || strings.Contains(paths[0], "NaN") || strings.Contains(paths[0], "Inf") {
		t.Errorf("paths %q", paths)
	}
}
