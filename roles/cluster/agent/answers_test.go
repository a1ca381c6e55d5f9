package agent

import (
	"maps"
	"testing"

	"github.com/cnibox/cnibox/netops/overlay"
)

// TestLoss: the loss of a node is of its last 64 requests, and a node that answered all of them takes no memory.
func TestLoss(t *testing.T) {
	var a answers
	loss := func(want map[string]int) {
		t.Helper()
		if got := a.loss(0); !maps.Equal(got, want) {
			t.Errorf("loss %v, want %v", got, want)
		}
	}
	for range 10 {
		a.note(0, "good", 1)
	}
	loss(map[string]int{})
	a.note(0, "half", 2)
	a.note(0, "half", 2)
	loss(map[string]int{"half": 4}) // 2 of 64, rounded up, so that a loss is never 0 %
	for range 40 {
		a.note(0, "half", 2)
	}
	a.note(1, "half", 1)
	loss(map[string]int{"half": 50})
	for range 62 {
		a.note(0, "half", 1)
	}
	if a.isSilent(0, "half") {
		t.Error("a node that answers is silent")
	}
	loss(map[string]int{"half": 2})
	a.note(0, "half", 1)
	loss(map[string]int{})
	for range 22 {
		a.note(0, "dead", 0)
	}
	if !a.isSilent(0, "dead") {
		t.Error("a node that does not answer is not silent")
	}
	loss(map[string]int{"dead": 100})
	a.note(0, "dead", 3)
	loss(map[string]int{"dead": 99})
	a.keep(0, []overlay.PeerState{{Peer: overlay.Peer{Name: "good"}}})
	loss(map[string]int{})
	if len(a.nodes[0])+len(a.nodes[1]) != 0 {
		t.Errorf("kept: %v", a.nodes)
	}
}
