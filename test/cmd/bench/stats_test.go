package main

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i) // newStat has to sort
	}
	for _, tt := range []struct {
		name   string
		series []time.Duration
		want   stat
	}{
		{"empty", nil, stat{}},
		{"one", []time.Duration{7}, stat{N: 1, P50: 7, P90: 7, P99: 7}},
		{"two", []time.Duration{9, 3}, stat{N: 2, P50: 3, P90: 9, P99: 9}},
		{"ten", []time.Duration{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, stat{N: 10, P50: 5, P90: 9, P99: 10}},
		{"hundred", hundred, stat{N: 100, P50: 50, P90: 90, P99: 99}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := newStat(tt.series); got != tt.want {
				t.Errorf("newStat = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestSpeedup(t *testing.T) {
	if got := (compared{Ours: stat{P50: 10}, Peer: stat{P50: 35}}).speedup(); got != 3.5 {
		t.Errorf("speedup = %v, want 3.5", got)
	}
	if got := (compared{Peer: stat{P50: 35}}).speedup(); got != 0 {
		t.Errorf("speedup without a time of ours = %v, want 0", got)
	}
}

func TestTurnsSwap(t *testing.T) {
	if turns(0) == turns(1) || turns(0) != turns(2) {
		t.Errorf("turns of rounds 0, 1, 2 = %v, %v, %v", turns(0), turns(1), turns(2))
	}
}
