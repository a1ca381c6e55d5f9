package ui

import (
	"slices"
	"testing"
)

// TestHistory: rates are kept for an hour, a link that comes back begins anew, and what a page draws does not change.
func TestHistory(t *testing.T) {
	h := history{span: defaultSpan}
	h.add(map[string]Counted{"a": {100, 0}})
	h.add(map[string]Counted{"a": {250, 15}, "b": {7, 7}})
	drawn := h.rates["a"]
	if !slices.Equal(drawn.Received, []float64{10}) || !slices.Equal(drawn.Sent, []float64{1}) || len(h.rates["b"].Received) != 0 {
		t.Errorf("%+v, %+v", drawn, h.rates["b"])
	}
	for i := range mostSamples + 5 {
		h.add(map[string]Counted{"a": {uint64(250 + 15*(i+1)), 15}})
	}
	if r := h.rates["a"]; len(r.Received) != mostSamples || r.Received[0] != 1 || h.rates["b"] != nil || len(drawn.Received) != 1 {
		t.Errorf("%d values, the first is %v; b: %v; drawn: %v", len(r.Received), r.Received[0], h.rates["b"], drawn.Received)
	}
	h.add(map[string]Counted{"a": {3, 15}}) // another link by that name
	if r := h.rates["a"]; len(r.Received) != 0 {
		t.Errorf("%v", r.Received)
	}
}
