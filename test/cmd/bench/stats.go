package main

import (
	"math"
	"slices"
	"time"
)

// stat sums up one series of timings. Percentiles are by nearest rank.
type stat struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50"`
	P90 time.Duration `json:"p90"`
	P99 time.Duration `json:"p99"`
}

func newStat(series []time.Duration) stat {
	sorted := slices.Sorted(slices.Values(series))
	return stat{N: len(sorted), P50: percentile(sorted, 50), P90: percentile(sorted, 90), P99: percentile(sorted, 99)}
}

// percentile returns the smallest element that at least p percent of a sorted series do not exceed; 0 for an empty series.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// compared is the same measurement on both sides.
type compared struct {
	Ours stat `json:"ours"`
	Peer stat `json:"peer"`
}

// speedup returns how many times as fast cnibox is, by the median; 0 if a side was not measured.
func (c compared) speedup() float64 {
	return ratio(float64(c.Peer.P50), float64(c.Ours.P50))
}

// key orders the runs by their ratio, or by our time if only our side was measured.
func (c compared) key() float64 {
	if c.Peer.N == 0 {
		return float64(c.Ours.P50)
	}
	return c.speedup()
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// timings collects both series of one measurement while it runs.
type timings [2][]time.Duration

func (t timings) compared() compared {
	return compared{Ours: newStat(t[0]), Peer: newStat(t[1])}
}

// turns returns the order of the two sides in a round. It changes every round, so that no side always runs after the other.
func turns(round int) [2]int {
	if round%2 == 0 {
		return [2]int{0, 1}
	}
	return [2]int{1, 0}
}
