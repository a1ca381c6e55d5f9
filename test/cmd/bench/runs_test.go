package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func reportOf(t *testing.T, runs ...*results) report {
	t.Helper()
	r, err := newReport(runs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReportOfOneRun(t *testing.T) {
	run := exampleResults()
	got := reportOf(t, run)
	if diff := cmp.Diff(exampleResults(), got.results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(summarize(run), got.Rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// The ratios of the runs are 5, 7 and 6; the median time of either side is not in the run with the median ratio.
func TestReportHasTheRunWithTheMedianRatio(t *testing.T) {
	run := func(ours, peer, wait time.Duration) *results {
		one := compared{Ours: stat{N: 1, P50: ours}, Peer: stat{N: 1, P50: peer}}
		return &results{
			Bridge:    &bridgeResult{Add: one},
			Parallel:  &parallelResult{Add: rates{float64(peer), float64(ours)}},
			Published: []publishedResult{{Connect: compared{Ours: stat{N: 1, P50: wait}}, CPU: [2]time.Duration{wait, 1}}},
			Notes:     []string{"a note"},
		}
	}
	runs := []*results{run(2000, 10000, 3), run(1000, 7000, 1), run(4000, 24000, 2)}
	got := reportOf(t, runs...)
	if diff := cmp.Diff(runs[2], got.results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for _, r := range got.Rows {
		if r.What == "ADD, 0 at a time" && r.Ratio != "6.00 × as fast" || strings.HasPrefix(r.What, "ADD bridge") && (r.Ratio != "6.00 × as fast" || r.Ours != "0.004 ms") {
			t.Errorf("row of another run: %+v", r)
		}
	}
	if runs[0].Bridge.Add.Ours.P50 != 2000 {
		t.Error("the first run was changed")
	}
}

func TestMedianOfAnEvenNumber(t *testing.T) {
	if got := medianBy([]float64{4, 1, 3, 2}, func(f float64) float64 { return f }); got != 2 {
		t.Errorf("median = %v, want 2", got)
	}
}

func TestReportOfDifferentRuns(t *testing.T) {
	for name, other := range map[string]*results{
		"no section": {},
		"other list": {Roles: []roleVersion{{Role: "tap"}, {Role: "ptp"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := newReport([]*results{{Roles: []roleVersion{{Role: "tap"}}}, other}); !errors.Is(err, errRuns) {
				t.Errorf("newReport: %v, want errRuns", err)
			}
		})
	}
}
