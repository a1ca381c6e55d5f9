package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/test/internal/chart"
)

const (
	// presentAtMost bounds an ADD beside the most containers, as a multiple of an ADD beside the fewest.
	presentAtMost = 1.3
	// kindnetRate is the number of ADDs per second that kindnet's authors published. They measured on another machine.
	kindnetRate = 161
)

// renderStorm returns the block with the curves of the storm.
func renderStorm(res report) string {
	s := res.Storm
	first, last := s.Present[0], s.Present[len(s.Present)-1]
	best := slices.MaxFunc(s.AtOnce, func(a, b atOnceResult) int { return cmp.Compare(a.Add.Ours, b.Add.Ours) })
	growth := ratio(float64(last.Add.Ours.P50), float64(first.Add.Ours.P50))
	onEmpty := ratio(float64(last.Empty.P50), float64(first.Empty.P50))
	rows := []row{
		{
			What: fmt.Sprintf("ADD beside %d containers, p50", last.Containers), Ours: ms(last.Add.Ours.P50), Peer: msOrNone(last.Add.Peer.P50, last.Add.Peer.N),
			Ratio: fmt.Sprintf("%.2f × that beside %d", growth, first.Containers), Target: fmt.Sprintf("≤ %.1f ×", presentAtMost), Met: growth > 0 && growth <= presentAtMost,
		},
		{
			What: fmt.Sprintf("ADD to an empty bridge beside %d containers, p50", last.Containers), Ours: ms(last.Empty.P50),
			Ratio: fmt.Sprintf("%.2f × that beside %d", onEmpty, first.Containers),
		},
		rateRow(fmt.Sprintf("ADD, %d at a time, most per second", best.AtATime), best.Add, 0),
	}
	text := fmt.Sprintf("`make bench-storm` measures this part alone. Measured once on: %s.\n\n", res.Machine) +
		renderTable(summaryHeader(), summaryCells(report{Rows: rows})) +
		"\n![ADD against containers and against calls at a time](docs/storm.svg)\n\n" +
		fmt.Sprintf("The dashed line is the rate that kindnet's authors published, %d ADDs per second on another machine. It was not measured here.\n\n", kindnetRate)
	return text + renderCurves(s)
}

// renderCurves returns the tables of the curves, and how they are measured.
func renderCurves(s *stormResult) string {
	var cells [][]string
	for _, p := range s.Present {
		ours, peer := p.Add.Ours, p.Add.Peer
		line := []string{
			strconv.Itoa(p.Containers), ms(ours.P50), ms(ours.P99), strconv.Itoa(ours.N), ms(p.Empty.P50),
			msOrNone(peer.P50, peer.N), msOrNone(peer.P99, peer.N), strconv.Itoa(peer.N), times(p.Add.speedup()),
		}
		if peer.N == 0 {
			line[8] = ""
		}
		cells = append(cells, line)
	}
	text := renderTable([]string{"containers present", "cnibox p50", "p99", "calls", "on an empty bridge, p50", "reference p50", "p99", "calls", "ratio"}, cells)
	cells = nil
	for _, p := range s.AtOnce {
		cells = append(cells, []string{strconv.Itoa(p.AtATime), perSecond(p.Add.Ours), perSecond(p.Add.Peer), times(p.Add.speedup())})
	}
	text += "\n" + renderTable([]string{"calls at a time", "cnibox ADD", "reference ADD", "ratio"}, cells) + "\n"
	for _, line := range []string{
		"ADD of bridge + host-local + ipMasq. Each side has a host of its own, which is a network namespace.",
		fmt.Sprintf("Containers present: one call at a time, on both hosts in turn. Each ADD is followed by DEL, so that the number stays. "+
			"A bridge has at most %d containers, because Linux allows 1,023 ports. The others are on a second bridge, and so are those that come and go then.", bridgeContainers),
		fmt.Sprintf("The reference reads all rules in each call. After %s of adding containers to its host, no more are added, and what it does not reach is not measured.", peerFillTime),
		fmt.Sprintf("Calls at a time: cnibox adds %d containers and the reference %d, one after the other, to a host without other containers.", atOnceContainers()[0], atOnceContainers()[1]),
		"Why ADD grows: the kernel sends a gratuitous ARP when the interface comes up, and the bridge copies it to each port and walks its list of ports. " +
			"On an empty bridge about a half of the growth is the write of accept_dad, for which the kernel searches net/ipv6 among all namespaces. cnibox makes the same requests beside any number of containers.",
	} {
		text += "- " + line + "\n"
	}
	return text
}

// msOrNone leaves out the time of what was not measured.
func msOrNone(d time.Duration, n int) string {
	if n == 0 {
		return ""
	}
	return ms(d)
}

// renderStormSVG draws the curves; it is empty if they were not measured.
func renderStormSVG(s *stormResult) string {
	if s == nil {
		return ""
	}
	const ours, peer, other = "#0a7d5a", "#8c959f", "#c4a15a"
	latency := chart.Lines{Title: "Milliseconds of one ADD beside so many containers", Label: "containers present", Curves: []chart.Curve{
		{Name: "cnibox p50", Colour: ours},
		{Name: "cnibox p99", Colour: "#2fc58f"},
		{Name: "reference p50", Colour: peer},
		{Name: "reference p99", Colour: "#b0b8c0"},
	}}
	for _, p := range s.Present {
		latency.At = append(latency.At, p.Containers)
		for i, d := range []time.Duration{p.Add.Ours.P50, p.Add.Ours.P99, p.Add.Peer.P50, p.Add.Peer.P99} {
			if d == 0 {
				continue // the reference did not reach this number
			}
			latency.Curves[i].Values = append(latency.Curves[i].Values, float64(d)/float64(time.Millisecond))
		}
	}
	rate := chart.Lines{Title: "ADDs per second with so many at a time", Label: "calls at a time", Curves: []chart.Curve{
		{Name: "cnibox", Colour: ours},
		{Name: "reference", Colour: peer},
		{Name: "kindnet, published", Colour: other, Dashed: true},
	}}
	for _, p := range s.AtOnce {
		rate.At = append(rate.At, p.AtATime)
		for i, v := range []float64{p.Add.Ours, p.Add.Peer, kindnetRate} {
			rate.Curves[i].Values = append(rate.Curves[i].Values, v)
		}
	}
	return chart.SVG(latency, rate)
}
