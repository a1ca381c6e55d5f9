package topo

import (
	"fmt"
	"strings"
	"time"
)

// Rates are the bytes per second of a link in equal spans of time, the oldest first. A negative number is a span in which nobody counted.
type Rates struct {
	Span     time.Duration `json:"spanNs"`
	Received []float64     `json:"received"`
	Sent     []float64     `json:"sent"`
}

// draw returns two lines, what the host receives and what it sends, and their highest values in words.
func (r *Rates) draw(received, sent string) string {
	if r == nil || len(r.Received) < 2 {
		return ""
	}
	most := [2]float64{}
	for d, values := range [][]float64{r.Received, r.Sent} {
		for _, v := range values {
			most[d] = max(most[d], v)
		}
	}
	const height = 24
	top := max(most[0], most[1], 1)
	var b strings.Builder
	text := fmt.Sprintf("%s at most %s/s, %s at most %s/s in the last %s", received, size(uint64(most[0])), sent, size(uint64(most[1])), (time.Duration(len(r.Received)) * r.Span).Round(time.Minute))
	fmt.Fprintf(&b, `<svg class="rates" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img"><title>%s</title>`, len(r.Received)-1, height, Escaped(text))
	for d, values := range [][]float64{r.Received, r.Sent} {
		fmt.Fprintf(&b, `<path class="%s" d="`, []string{"received", "sent"}[d])
		move := "M"
		for i, v := range values {
			if v < 0 { // a gap
				move = "M"
				continue
			}
			fmt.Fprintf(&b, "%s%d %.1f", move, i, height-1-v/top*(height-2))
			move = "L"
		}
		b.WriteString(`"/>`)
	}
	b.WriteString("</svg>")
	return b.String()
}
