package bench

import (
	"slices"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// TestReport: percentiles by nearest rank, the ratios of rounds, and a histogram that has every sample.
func TestReport(t *testing.T) {
	r := &Report{Rounds: 4, Sides: []Side{
		{Plugins: "a", Verbs: []Measured{{Samples: []float64{1, 2, 4, 3}}}},
		{Plugins: "b", Verbs: []Measured{{Samples: []float64{2, 20, 4, 30}}}},
	}}
	r.sum([]roles.Verb{roles.Add}, map[roles.Verb][][]float64{roles.Add: {{10, 30, 20}, {3, 1, 2}}})
	a, b := r.Sides[0].Verbs[0], r.Sides[1].Verbs[0]
	if a.P50 != 2 || a.P90 != 4 || a.Max != 4 || b.P50 != 4 || b.P99 != 30 || a.PerSecond != 20 || b.PerSecond != 2 {
		t.Errorf("%+v\n%+v", a, b)
	}
	if want := (Ratio{roles.Add, 1, 2, 10}); len(r.Ratios) != 1 || r.Ratios[0] != want {
		t.Errorf("ratios %v, want %v", r.Ratios, want)
	}
	bounds, counts := r.Histogram(0)
	if want := []float64{1, 1.5, 2.5, 4, 6, 10, 15, 25}; !slices.Equal(bounds, want) {
		t.Errorf("bounds %v, want %v", bounds, want)
	}
	if !slices.Equal(counts[0], []int{1, 1, 1, 1, 0, 0, 0, 0}) || !slices.Equal(counts[1], []int{0, 1, 0, 1, 0, 0, 1, 1}) {
		t.Errorf("counts %v", counts)
	}
	if p := percentile(nil, 50); p != 0 {
		t.Errorf("percentile of nothing is %v", p)
	}
}
