package rates

import (
	"slices"
	"testing"
)

// TestHistory: rates are kept for an hour, a link that comes back begins anew, what somebody draws does not change, and another History
// goes on.
func TestHistory(t *testing.T) {
	h := New(Span, nil)
	h.Add(map[string]Counted{"a": {100, 0}})
	h.Add(map[string]Counted{"a": {250, 15}, "b": {7, 7}})
	drawn, b := h.Links()["a"], h.Links()["b"]
	if !slices.Equal(drawn.Received, []float32{10}) || !slices.Equal(drawn.Sent, []float32{1}) || len(b.Received) != 0 {
		t.Errorf("%+v, %+v", drawn, b)
	}
	for i := range most + 5 {
		h.Add(map[string]Counted{"a": {uint64(250 + 15*(i+1)), 15}})
	}
	if r := h.Links()["a"]; len(r.Received) != most || r.Received[0] != 1 || h.Links()["b"] != nil || len(drawn.Received) != 1 {
		t.Errorf("%d values, the first is %v; b: %v; drawn: %v", len(r.Received), r.Received[0], h.Links()["b"], drawn.Received)
	}
	next := New(Span, h.Links())
	for _, bytes := range []uint64{1000, 1030} {
		next.Add(map[string]Counted{"a": {bytes, 0}})
	}
	if r := next.Links()["a"]; len(r.Received) != most || r.Received[most-1] != 2 || r.Received[most-2] != 1 {
		t.Errorf("%v", r.Received)
	}
	h.Add(map[string]Counted{"a": {3, 15}}) // another link by that name
	if r := h.Links()["a"]; len(r.Received) != 0 {
		t.Errorf("%v", r.Received)
	}
}
