package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAllocate: the referee counts addresses that are given twice, and ADDs that fail.
func TestAllocate(t *testing.T) {
	program := filepath.Join(t.TempDir(), "plugin")
	// One node gets one address for all containers, another one fails.
	script := `#!/bin/sh
case "$CNI_CONTAINERID" in node-3-*) exit 1 ;; esac
pod=${CNI_CONTAINERID##*-}
[ "$NODE" != 4 ] || pod=0
echo '{"ips":[{"address":"10.'$NODE'.0.'$pod'/8"}]}'
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := ipam{program: program, macvlan: program, env: func(node int) []string { return []string{"NODE=" + string(rune('0'+node))} }}
	both := p.measure(t.Context())
	a := both[0]
	if len(a.took) != (rangeNodes-1)*rangePods || a.failed != rangePods || a.twice != rangePods-1 || a.failure == nil {
		t.Errorf("%d addresses, %d of them twice, %d failures (%v)", len(a.took), a.twice, a.failed, a.failure)
	}
	if a := both[1]; len(a.took) != (rangeNodes-1)*linkPods || a.twice != linkPods {
		t.Errorf("%d addresses of pods, %d of them twice", len(a.took), a.twice)
	}
}

func TestRangesMarkdown(t *testing.T) {
	a := allocations{took: []seconds{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}, all: time.Second}
	b := allocations{took: []seconds{time.Second}, failed: 1, twice: 1, all: 10 * time.Second}
	text := rangesMarkdown([2]allocations{a, a}, [2]allocations{b, b})
	for _, want := range []string{
		"| addresses given | 6 | 2 | |", "| addresses given twice | 0 | 2 | |", "| ADDs that failed | 0 | 2 | |",
		"| one ADD of macvlan, p50 | 2.0 ms | 1000.0 ms | 500.0 × as fast |", "| pods per second | 3.0 | 0.1 | 30 × as many |",
		"whereabouts began no ADD after 10m0s. It had begun 2 by then.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
