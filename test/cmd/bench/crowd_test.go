package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// exampleStorm has an ADD that takes this many percent of the first one beside the most containers, which the reference does not reach.
func exampleStorm(percent int) report {
	at := func(ours, peer time.Duration) compared {
		c := compared{Ours: stat{N: 100, P50: ours, P99: 2 * ours}}
		if peer > 0 {
			c.Peer = stat{N: 20, P50: peer, P99: 2 * peer}
		}
		return c
	}
	first := 5 * time.Millisecond
	return report{results: &results{
		Machine: machine{CPU: "a processor", Cores: 2},
		Storm: &stormResult{
			Present: []presentResult{
				{Containers: 1, Add: at(first, 30*time.Millisecond), Empty: stat{N: 20, P50: first}},
				{Containers: 2000, Add: at(first*time.Duration(percent)/100, 0), Empty: stat{N: 20, P50: first}},
			},
			AtOnce: []atOnceResult{{1, rates{100, 20}}, {2, rates{200.4, 40}}, {4, rates{200, 50}}},
		},
	}}
}

func TestRenderStorm(t *testing.T) {
	for percent, verdict := range map[int]string{130: "met", 131: "not met"} {
		line := ""
		for l := range strings.Lines(renderStorm(exampleStorm(percent))) {
			if strings.HasPrefix(l, "| ADD beside 2000 containers, p50") {
				line = l
			}
		}
		fields := strings.Split(line, "|")
		if len(fields) != 8 || strings.TrimSpace(fields[6]) != verdict || strings.TrimSpace(fields[3]) != "" {
			t.Errorf("%d %%: %q, want %q and no time of the reference", percent, line, verdict)
		}
	}
	text := renderStorm(exampleStorm(100))
	for _, want := range []string{"ADD, 2 at a time, most per second", "200/s", "161 ADDs per second on another machine. It was not measured here", "a processor"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestStormSVG(t *testing.T) {
	if got := renderStormSVG(nil); got != "" {
		t.Errorf("chart of nothing: %q", got)
	}
	chart := renderStormSVG(exampleStorm(100).Storm)
	paths, dashed := 0, 0
	for _, e := range elements(t, chart) {
		if e.Name.Local == "path" {
			paths++
			if attr(e, "stroke-dasharray") != "" {
				dashed++
			}
		}
	}
	if paths != 7 || dashed != 1 || !strings.Contains(chart, "kindnet, published") {
		t.Errorf("%d curves, %d of them not measured here, want 7 and 1\n%s", paths, dashed, chart)
	}
}

// TestOthers: a measurement keeps the sections that other commands wrote.
func TestOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for present, want := range map[string]string{"old\n": "new\n", "old\n" + others + "scale\n": "new\n\n" + others + "scale\n"} {
		if err := os.WriteFile(path, []byte(present), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := withOthers(path, "new\n"); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", present, got, err, want)
		}
	}
	if got, err := withOthers(path+"x", "new\n"); err != nil || got != "new\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestStormAlone: a measurement of the storm alone replaces its part of a page, and the whole page has the same part.
func TestStormAlone(t *testing.T) {
	res := reportOf(t, exampleResults())
	res.Storm = exampleStorm(131).Storm
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(renderMarkdown(res)), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parseOptions([]string{"-only", "storm", "-out", page, "-svg", page + ".svg", "-storm-svg", page + ".storm.svg"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	alone := exampleStorm(130)
	alone.Machine = res.Machine
	if err := write(o, alone); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	res.Storm = alone.Storm
	if string(b) != renderMarkdown(res) {
		t.Errorf("the page is\n%s\nwant\n%s", b, renderMarkdown(res))
	}
	if _, err := os.Stat(page + ".storm.svg"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(page + ".svg"); err == nil {
		t.Error("the chart of the other sections was written")
	}
}
