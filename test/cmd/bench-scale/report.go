package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// results are all measurements.
type results struct {
	peers      int
	etcd, kube live
	fleet      fleet
	floor      seconds
	points     []point
	hand, ours float64 // Gbit/s
}

// point is one size of the plot.
type point struct {
	peers                           int
	agent, nexthops, classic, floor seconds
}

func median(all []seconds) seconds {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// The targets for 10,000 nodes.
const (
	mostEtcd  = 800 * time.Millisecond
	mostKube  = 1500 * time.Millisecond
	mostOne   = 50 * time.Millisecond
	mostBurst = 500 * time.Millisecond
	mostRSS   = 40 << 10 // KiB
	mostPeak  = 48 << 10
	leastRate = 0.97
)

func verdict(ok bool) string {
	if ok {
		return "met"
	}
	return "missed"
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }

// scaleIntro explains the first table of the page.
const scaleIntro = "Run `make bench-scale` to measure how fast the agent programs many nodes. The command writes this page.\n\n" +
	"- **start to programmed**: from the agent's start until every node is in the kernel.\n" +
	"- **one change**: from the request to the registry until the change is in the kernel.\n" +
	"- **from the registry's reply**, **from the registry's last reply**: without the time of the requests.\n\n" +
	"If a line says \"missed\", run the command again on an idle machine.\n\n"

// growthIntro explains the table of the growth with the number of nodes.
const growthIntro = "\nThe next table has the time until all nodes are in the kernel. \"netops alone\" is the agent's code without a registry, " +
	"\"classic form\" the same\nwithout nexthop objects, and \"iproute2\" the two batch commands.\n\n"

func (r *results) markdown(svg string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The overlay with %d nodes\n\n"+scaleIntro, r.peers)
	b.WriteString("| what | measured | target | |\n|---|---:|---:|---|\n")
	line := func(what, have, target string, ok bool) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", what, have, target, verdict(ok))
	}
	part := func(name string, l live, most time.Duration) {
		if l.start == 0 {
			return
		}
		line(name+": start to programmed", ms(l.start), "≤ "+ms(most), l.start <= most)
		line(name+": one change, median of 20", ms(l.one), "≤ "+ms(mostOne), l.one <= mostOne)
		line(name+": one change, longest, from the registry's reply", fmt.Sprintf("%s (%s with the request)", ms(l.oneTail), ms(l.oneMost)), "≤ "+ms(mostOne), l.oneTail <= mostOne)
		line(name+": 1,000 changes, from the registry's last reply", fmt.Sprintf("%s (%s with all requests)", ms(l.tail), ms(l.burst)), "≤ "+ms(mostBurst), l.tail <= mostBurst)
		line(name+": resident memory after these changes", fmt.Sprintf("%.1f MB", float64(l.rss)/1024), "≤ 40 MB", l.rss <= mostRSS)
		line(name+": peak of the resident memory", fmt.Sprintf("%.1f MB", float64(l.peak)/1024), "≤ 48 MB", l.peak <= mostPeak)
		line(name+": CPU without changes", fmt.Sprintf("%.1f %%", 100*l.idle), "about 0", l.idle < 0.01)
	}
	part("etcd", r.etcd, mostEtcd)
	part("kube-apiserver", r.kube, mostKube)
	if r.hand > 0 {
		line("throughput between pods, relative to a plain VXLAN", fmt.Sprintf("%.2f (%.1f of %.1f Gbit/s)", r.ours/r.hand, r.ours, r.hand), fmt.Sprintf("≥ %.2f", leastRate), r.ours/r.hand >= leastRate)
	}
	fmt.Fprintf(&b, "\nTo add the same objects with `ip -batch` and `bridge -batch`, without a registry, takes %s.\n", ms(r.floor))
	b.WriteString(growthIntro + "| nodes | agent on etcd | netops alone | classic form | iproute2 |\n|---:|---:|---:|---:|---:|\n")
	for _, p := range r.points {
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", p.peers, ms(p.agent), ms(p.nexthops), ms(p.classic), ms(p.floor))
	}
	if svg != "." && svg != "" {
		fmt.Fprintf(&b, "\n![growth](%s)\n", svg)
	}
	if len(r.fleet.joins) > 0 {
		b.WriteString(r.fleet.markdown(r.peers))
	}
	return b.String()
}

// The plot's geometry.
const (
	plotWidth, plotHeight     = 720, 400
	plotLeft, plotTop         = 60, 40
	plotRight, plotBottom     = 150, 50
	plotInnerW, plotInnerH    = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
	plotLeast, plotMost, decs = 0.001, 10.0, 4
)

// plot draws seconds over nodes, both on logarithmic scales: linear growth is a straight line, quadratic growth a steeper one.
func (r *results) plot() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	b.WriteString(`<style>text{fill:#24292f}.g{stroke:#d0d7de}path{fill:none;stroke-width:2}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#30363d}}</style>` + "\n")
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14">Seconds until so many nodes are in the kernel</text>`+"\n", plotLeft)
	first, last := float64(r.points[0].peers), float64(r.points[len(r.points)-1].peers)
	x := func(n int) float64 {
		return plotLeft + plotInnerW*math.Log(float64(n)/first)/math.Log(last/first)
	}
	y := func(s float64) float64 {
		s = min(max(s, plotLeast), plotMost)
		return plotTop + plotInnerH*(1-math.Log10(s/plotLeast)/decs)
	}
	for s := plotLeast; s < plotMost*1.1; s *= 10 {
		fmt.Fprintf(&b, `<line class="g" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", plotLeft, plotLeft+plotInnerW, y(s), y(s), plotLeft-6, y(s)+4, math.Round(s*1000)/1000)
	}
	for _, p := range r.points {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(p.peers), plotHeight-plotBottom+18, p.peers)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">nodes</text>`+"\n", plotLeft+plotInnerW/2, plotHeight-12)
	var below float64
	for _, c := range []struct {
		name, colour string
		of           func(point) seconds
	}{
		{"classic form", "#cf222e", func(p point) seconds { return p.classic }},
		{"agent on etcd", "#0969da", func(p point) seconds { return p.agent }},
		{"iproute2 -batch", "#6e7781", func(p point) seconds { return p.floor }},
		{"netops alone", "#1a7f37", func(p point) seconds { return p.nexthops }},
	} {
		var d strings.Builder
		for i, p := range r.points {
			fmt.Fprintf(&d, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == 0], x(p.peers), y(c.of(p).Seconds()))
		}
		end := max(y(c.of(r.points[len(r.points)-1]).Seconds())+4, below+14)
		below = end
		fmt.Fprintf(&b, `<path d="%s" stroke="%s"/><text x="%d" y="%.1f" style="fill:%s">%s</text>`+"\n", d.String(), c.colour, plotLeft+plotInnerW+8, end, c.colour, c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
