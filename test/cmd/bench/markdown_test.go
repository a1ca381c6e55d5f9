package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRenderTable(t *testing.T) {
	got := renderTable([]string{"what", "ours"}, [][]string{{"ADD", "5 ×"}, {"longer", "12"}})
	want := strings.Join([]string{
		"| what   | ours |",
		"|--------|-----:|",
		"| ADD    |  5 × |",
		"| longer |   12 |",
		"",
	}, "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestRenderMarkdown(t *testing.T) {
	got := renderMarkdown(reportOf(t, exampleResults()))
	for _, want := range []string{
		"(https://github.com/containernetworking/plugins) v1.2.3. ",
		"`make bench`",
		"a <processor> & more, 2 cores, 8 GB, Linux 6.1, go1.26, 2026-01-02",
		"| ADD bridge + host-local + ipMasq, p50           |  7.00 ms |   42.0 ms |        6.00 × as fast |   ≥ 6 × |     met |",
		"| DEL                      |    30.0 ms |  60.0 ms |  90.0 ms |        119 ms |   238 ms |   357 ms |   200 |",
		"| 99.9 %   |",
		"main 0.040 ms",
		"- a note\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestRenderMarkdownOfOneSection(t *testing.T) {
	version := compared{Ours: stat{N: 1, P50: 1}, Peer: stat{N: 1, P50: 1}}
	got := renderMarkdown(reportOf(t, &results{Version: &version}))
	for _, absent := range []string{"DEL,", "Allocation", "Cost of a start"} {
		if strings.Contains(got, absent) {
			t.Errorf("%q of a section that did not run in\n%s", absent, got)
		}
	}
}
