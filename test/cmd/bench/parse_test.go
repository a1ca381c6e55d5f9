package main

import (
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSections(t *testing.T) {
	got, err := parseSections("alloc,version")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{sectionVersion, sectionAlloc}, got); diff != "" {
		t.Errorf("sections (-want +got):\n%s", diff)
	}
	if _, err := parseSections("version,nonsense"); err == nil {
		t.Error("an unknown section was accepted")
	}
}

func TestParseInitTrace(t *testing.T) {
	got, err := parseInitTrace([]byte("init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs\n" +
		"CNI bridge plugin v1.9.1\n" +
		"init net @0.61 ms, 0.012 ms clock, 3000 bytes, 20 allocs\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []initCost{{"internal/bytealg", 0}, {"net", 12 * time.Microsecond}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("init trace (-want +got):\n%s", diff)
	}
	if _, err := parseInitTrace([]byte("something else\n")); err == nil {
		t.Error("no trace at all was accepted")
	}
}

func TestParseBenchmarks(t *testing.T) {
	got := parseBenchmarks("goos: linux\n" +
		"BenchmarkAllocate/full=0-2 \t 200\t 81234 ns/op\n" +
		"BenchmarkAllocate/full=50 \t 200\t 812.5 ns/op\t 12 B/op\n" +
		"BenchmarkAllocate/full=99.9-16 \t 200\t 3456789 ns/op\nPASS\n")
	want := map[string]time.Duration{"0": 81234, "50": 812, "99.9": 3456789}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("benchmarks (-want +got):\n%s", diff)
	}
}

func TestTakenSpreadsEvenly(t *testing.T) {
	for _, level := range fillLevels() {
		count, longest, run := 0, 0, 0
		for i := range poolSize {
			run++
			if taken(i, level.Addresses) {
				count++
				continue
			}
			longest, run = max(longest, run), 0
		}
		if count != level.Addresses {
			t.Errorf("%s %%: %d addresses taken, want %d", level.Full, count, level.Addresses)
		}
		if spacing := poolSize / (poolSize - level.Addresses); longest > spacing+1 {
			t.Errorf("%s %%: %d addresses from one free one to the next, want %d", level.Full, longest, spacing)
		}
	}
}

func TestMajorMinor(t *testing.T) {
	for release, want := range map[string]string{"6.1.0-13-amd64": "6.1", "6.18.44-vendor": "6.18", "7": "7"} {
		if got := majorMinor(release); got != want {
			t.Errorf("majorMinor(%q) = %q, want %q", release, got, want)
		}
	}
}

func TestLongestWait(t *testing.T) {
	got, err := longestOf([]byte("time=2026-11-22T09:00:00.000Z level=DEBUG msg=\"waited for a lock\" role=azure-vnet lock=/run/cnibox/x/node.db took=1.5ms\n" +
		"time=2026-11-22T09:00:00.000Z level=DEBUG msg=\"waited for a lock\" role=azure-vnet lock=azureview/run took=12.25ms\n" +
		"time=2026-11-22T09:00:00.000Z level=DEBUG msg=\"call is done\" role=azure-vnet verb=ADD took=99ms error=<nil>\n"))
	if err != nil || got != 12250*time.Microsecond {
		t.Errorf("longestOf: %v, %v", got, err)
	}
}

func TestParseRuns(t *testing.T) {
	if o, err := parseOptions(nil, io.Discard); err != nil || o.runs != 3 {
		t.Errorf("%d runs, %v; want 3", o.runs, err)
	}
	if _, err := parseOptions([]string{"-runs", "0"}, io.Discard); err == nil {
		t.Error("no run was accepted")
	}
}
