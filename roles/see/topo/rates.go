package topo

import (
	"fmt"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops/rates"
)

// drawRates returns two lines, what the host receives and what it sends, and their highest values in words.
func drawRates(r *rates.Rates, received, sent string) string {
	if r == nil || len(r.Received) < 2 {
		return ""
	}
	most := [2]float32{}
	for d, values := range [][]float32{r.Received, r.Sent} {
		for _, v := range values {
			most[d] = max(most[d], v)
		}
	}
	const height = 24
	top := max(most[0], most[1], 1)
	var b strings.Builder
	text := fmt.Sprintf("%s at most %s/s, %s at most %s/s in the last %s", received, size(uint64(most[0])), sent, size(uint64(most[1])), (time.Duration(len(r.Received)) * r.Span).Round(time.Minute))
	fmt.Fprintf(&b, `<svg class="rates" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img"><title>%s</title>`, len(r.Received)-1, height, Escaped(text))
	for d, values := range [][]float32{r.Received, r.Sent} {
		fmt.Fprintf(&b, `<path class="%s" d="`, []string{"received", "sent"}[d])
		move := "M"
		for i, v := range values {
			fmt.Fprintf(&b, "%s%d %.1f", move, i, height-1-v/top*(height-2))
			move = "L"
		}
		b.WriteString(`"/>`)
	}
	b.WriteString("</svg>")
	return b.String()
}
