package topo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
)

// Call is a call of a plugin.
type Call struct {
	Time      time.Time     `json:"time"`
	Took      time.Duration `json:"tookNs"`
	Container string        `json:"container"`
	// Text is short, and Details has the whole. The first line of Details identifies the call.
	Text    string `json:"text"`
	Details string `json:"details"`
	Failed  bool   `json:"failed,omitempty"`
}

// leastBar is the width of a bar in percent that can be seen.
const leastBar = 0.1

// A group of calls ends before a pause, or when it is full: the bars of a longer time would be too short to read.
const groupPause, groupCalls = time.Second, 50

// Timeline draws calls as bars, the newest group first. Each call has a line, because its text has more room there than in a short
// bar. The time of a group fills the width.
func Timeline(calls []Call) string {
	if len(calls) == 0 {
		return "<p>No call of a plugin is in the trace.</p>"
	}
	calls = slices.Clone(calls)
	sorting.Stable(calls, func(a, b Call) int { return a.Time.Compare(b.Time) })
	var groups [][]*Call
	var end time.Time
	failed := 0
	for i := range calls {
		c := &calls[i]
		if i == 0 || c.Time.Sub(end) > groupPause || len(groups[len(groups)-1]) == groupCalls {
			groups, end = append(groups, nil), c.end()
		}
		last := &groups[len(groups)-1]
		*last = append(*last, c)
		if c.end().After(end) {
			end = c.end()
		}
		if c.Failed {
			failed++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<h2>%d calls of plugins, %d failed</h2>\n", len(calls), failed)
	for _, group := range slices.Backward(groups) {
		writeGroup(&b, group)
	}
	return b.String()
}

func (c *Call) end() time.Time { return c.Time.Add(c.Took) }

// writeGroup writes calls that are sorted by time.
func writeGroup(b *strings.Builder, calls []*Call) {
	start, span := calls[0].Time, time.Duration(1)
	for _, c := range calls {
		span = max(span, c.end().Sub(start))
	}
	fmt.Fprintf(b, "<h3>%s: %d calls in %.1f ms</h3>\n", start.Format("2006-01-02 15:04:05.000"), len(calls), float64(span)/float64(time.Millisecond))
	for _, c := range calls {
		class := "call"
		if c.Failed {
			class += problemClass
		}
		writeButton(b, class, c.Details)
		percent := func(d time.Duration) float64 { return 100 * float64(max(d, 0)) / float64(span) }
		fmt.Fprintf(b, `<span>%s</span><span>%s</span><svg><rect x="%.2f%%" width="%.2f%%"/></svg></button>`+"\n",
			Escaped(c.Container), Escaped(c.Text), percent(c.Time.Sub(start)), max(percent(c.Took), leastBar))
	}
}
