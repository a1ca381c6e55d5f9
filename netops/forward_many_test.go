package netops

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestForwardManyRecorded adds rules while a node has many recorded ones. The number of
// requests must not depend on the number of recorded rules. After a flush, one addition
// makes all recorded rules again.
func TestForwardManyRecorded(t *testing.T) {
	nstest.Fresh(t)
	var recorded []*Forward
	n := New(Options{Forwards: func(context.Context) ([]*Forward, error) { return recorded, nil }})
	t.Cleanup(func() { _ = n.Close() })
	requests := func() uint32 {
		t.Helper()
		return connOf(t, n.nft).Requests()
	}
	another := func(network string) uint32 {
		t.Helper()
		f := forwardOf(network)
		ensure(t, n, f)
		before := requests()
		ensure(t, n, f, forwardOf(strings.Replace(network, "10.", "11.", 1)))
		return requests() - before
	}
	few := another("10.255.0.0/24")
	for i := range 600 { // three rules each: more than one transaction
		f := forwardOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24).String())
		if i%2 == 0 {
			f.Shared, f.Label = false, "cnibox:00000000000000aa"
		}
		recorded = append(recorded, f)
	}
	ensure(t, n, forwardOf("10.254.0.0/24"))
	if many := another("10.253.0.0/24"); many != few {
		t.Errorf("%d requests beside %d recorded rules, want %d as without", many, len(recorded), few)
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	ensure(t, n, forwardOf("10.252.0.0/24"))
	have := nstest.Run(t, "iptables-nft", "-S", "CNI-FORWARD")
	if rules := strings.Count(have, "-j ACCEPT"); rules != 3*(len(recorded)+1) {
		t.Errorf("%d rules after a flush, want %d", rules, 3*(len(recorded)+1))
	}
}
