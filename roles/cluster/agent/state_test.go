package agent

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store"
)

// TestCountPeers: a node with both families counts once, and is programmed if both are.
func TestCountPeers(t *testing.T) {
	counted := func(peers, missing string) *family {
		var f family
		for _, name := range strings.Fields(peers) {
			f.spec.Peers = append(f.spec.Peers, overlay.Peer{Name: name})
		}
		f.report.Missing = strings.Fields(missing)
		f.report.Wanted = len(f.spec.Peers)
		f.report.Programmed = f.report.Wanted - len(f.report.Missing)
		return &f
	}
	failed := counted("a b c", "")
	failed.report.Wanted, failed.report.Programmed = 0, 0
	for name, of := range map[string]struct {
		families []*family
		want     store.OverlayPeers
	}{
		"none":                     {nil, store.OverlayPeers{}},
		"one family":               {[]*family{counted("a b c", "b")}, store.OverlayPeers{Wanted: 3, Programmed: 2}},
		"both":                     {[]*family{counted("a b", ""), counted("a b", "")}, store.OverlayPeers{Wanted: 2, Programmed: 2}},
		"nodes of one family":      {[]*family{counted("a b", ""), counted("b c d", "")}, store.OverlayPeers{Wanted: 4, Programmed: 4}},
		"one node missing in both": {[]*family{counted("a b", "b"), counted("a b c", "b c")}, store.OverlayPeers{Wanted: 3, Programmed: 1}},
		"a spec that failed":       {[]*family{counted("a b c", ""), failed}, store.OverlayPeers{Wanted: 3}},
	} {
		if got := countPeers(of.families); got != of.want {
			t.Errorf("%s: %+v, want %+v", name, got, of.want)
		}
	}
}
