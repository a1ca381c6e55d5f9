package topo

import (
	"fmt"
	"slices"
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

const (
	// A group of calls ends before a pause, or when it is full: the bars of a longer time would be too short to read.
	groupPause, groupCalls = time.Second, 50
	// barLeast is the least width of a bar, and barText that of a bar with a text.
	barLeast, barText = 4, 40
)

// Timeline draws calls as bars, the newest group first. A group has a line for each container, and its time fills the width.
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
	var d drawing
	y := 0
	for _, group := range slices.Backward(groups) {
		y = d.group(group, y) + row/2
	}
	return fmt.Sprintf("<h2>%d calls of plugins, %d failed</h2>\n%s", len(calls), failed, d.svg("", y))
}

func (c *Call) end() time.Time { return c.Time.Add(c.Took) }

// group draws calls that are sorted by time, and returns the lower edge.
func (d *drawing) group(calls []*Call, y int) int {
	start, span := calls[0].Time, time.Duration(1)
	for _, c := range calls {
		span = max(span, c.end().Sub(start))
	}
	d.text(0, y, groupX+groupWidth, fmt.Sprintf("%s: %d calls in %.1f ms", start.Format("2006-01-02 15:04:05.000"), len(calls), float64(span)/float64(time.Millisecond)))
	lines := map[string]int{}
	for _, c := range calls {
		at, known := lines[c.Container]
		if !known {
			at = y + (len(lines)+1)*row
			lines[c.Container] = at
			d.text(indention, at, groupX-indention, c.Container)
		}
		width := min(max(int(float64(groupWidth)*float64(c.Took)/float64(span)), barLeast), groupWidth)
		x := min(int(float64(groupWidth)*float64(c.Time.Sub(start))/float64(span)), groupWidth-width)
		text := c.Text
		if width < barText {
			text = ""
		}
		d.box(class(c.Failed, "call"), groupX+x, at, width, text, c.Details)
	}
	return y + (len(lines)+1)*row
}

// text writes a text without a box.
func (d *drawing) text(x, y, width int, text string) {
	fmt.Fprintf(&d.boxes, `<svg x="%d" y="%d" width="%d" height="%d"><text y="%d">%s</text></svg>`+"\n", x, y, width, boxHeight, boxHeight-7, Escaped(text))
}
