package cluster

import (
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkSnapshot changes one of 10,000 nodes and makes a snapshot.
func BenchmarkSnapshot(b *testing.B) {
	var t Table
	for i := range 10000 {
		t.Put(fmt.Sprintf("node-%05d", i), Node{Name: fmt.Sprintf("node-%05d", i), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}, nil)
	}
	for b.Loop() {
		t.Remove("node-05000")
		t.Put("node-05000", Node{Name: "node-05000"}, nil)
		_ = t.Snapshot()
	}
}
