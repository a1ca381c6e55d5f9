package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/test/internal/chart"
)

// results are all measurements.
type results struct {
	peers      int
	etcd, kube live
	fleet      fleet
	floor      seconds
	points     []point
	rates      rates
}

// point is one size of the plot.
type point struct {
	peers                           int
	agent, nexthops, classic, floor seconds
}

func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// The targets for 10,000 nodes.
const (
	mostEtcd  = 800 * time.Millisecond
	mostKube  = 1500 * time.Millisecond
	mostOne   = 50 * time.Millisecond
	mostBurst = 500 * time.Millisecond
	mostLeft  = 80 * time.Millisecond // flanneld's time
	mostRSS   = 40 << 10              // KiB
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

// scaleIntro explains the first table.
const scaleIntro = "## The overlay with many nodes\n\nRun `make bench-scale` to measure how fast the agent programs many nodes. The command writes this section. The first table is for %d nodes.\n\n" +
	"- **start to programmed**: from the agent's start until every node is in the kernel.\n" +
	"- **one change**: from the request to the registry until the change is in the kernel.\n" +
	"- **from the registry's reply**, **from the registry's last reply**: without the time of the requests.\n\n" +
	"If a line says \"missed\", run the command again on an idle machine.\n\n"

// growthIntro explains the table of the growth with the number of nodes.
const growthIntro = "\nThe next table has the time until all nodes are in the kernel. \"netops alone\" is the agent's code without a registry, " +
	"\"classic form\" the same\nwithout nexthop objects, and \"iproute2\" the two batch commands.\n\n"

func (r *results) markdown(svg string) string {
	var b strings.Builder
	fmt.Fprintf(&b, scaleIntro, r.peers)
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
		if l.left > 0 {
			line(name+": 1,000 nodes leave, from the registry's last reply", fmt.Sprintf("%s (%s with all requests)", ms(l.leftTail), ms(l.left)), "≤ "+ms(mostLeft), l.leftTail <= mostLeft)
		}
		line(name+": resident memory after these changes", fmt.Sprintf("%.1f MB", float64(l.rss)/1024), "≤ 40 MB", l.rss <= mostRSS)
		line(name+": peak of the resident memory", fmt.Sprintf("%.1f MB", float64(l.peak)/1024), "≤ 48 MB", l.peak <= mostPeak)
		line(name+": CPU without changes", fmt.Sprintf("%.1f %%", 100*l.idle), "about 0", l.idle < 0.01)
	}
	part("etcd", r.etcd, mostEtcd)
	part("kube-apiserver", r.kube, mostKube)
	if t := r.rates; t.hand > 0 {
		line("throughput between pods, relative to a plain VXLAN", fmt.Sprintf("%.3f (%.1f and %.1f Gbit/s)", t.ratio, t.ours, t.hand), fmt.Sprintf("≥ %.2f", leastRate), t.ratio >= leastRate)
	}
	fmt.Fprintf(&b, "\nTo add the same objects with `ip -batch` and `bridge -batch`, without a registry, takes %s.\n", ms(r.floor))
	b.WriteString(growthIntro + "| nodes | agent on etcd | netops alone | classic form | iproute2 |\n|---:|---:|---:|---:|---:|\n")
	for _, p := range r.points {
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", p.peers, ms(p.agent), ms(p.nexthops), ms(p.classic), ms(p.floor))
	}
	if svg != "" {
		fmt.Fprintf(&b, "\n![growth](%s)\n", svg)
	}
	if len(r.fleet.joins) > 0 {
		b.WriteString(r.fleet.markdown(r.peers))
	}
	return b.String()
}

// plot draws seconds over nodes.
func (r *results) plot() string {
	l := chart.Lines{Title: "Seconds until so many nodes are in the kernel", Label: "nodes", Curves: []chart.Curve{
		{Name: "classic form", Colour: "#cf222e"},
		{Name: "agent on etcd", Colour: "#0969da"},
		{Name: "iproute2 -batch", Colour: "#6e7781"},
		{Name: "netops alone", Colour: "#1a7f37"},
	}}
	for _, p := range r.points {
		l.At = append(l.At, p.peers)
		for i, s := range []seconds{p.classic, p.agent, p.floor, p.nexthops} {
			l.Curves[i].Values = append(l.Curves[i].Values, s.Seconds())
		}
	}
	return chart.SVG(l)
}
