package netops

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestVerifyBesideManyChains: CHECK of an element costs the same beside the thousands of chains of
// another program, such as kube-proxy. It reads the base chains of the element's feature only.
func TestVerifyBesideManyChains(t *testing.T) {
	nstest.Fresh(t)
	n := New(Options{})
	t.Cleanup(func() { _ = n.Close() })
	masquerade := &Element{Set: "masq4", Key: []string{"cni0", "10.1.0.0/16"}, Shared: true, Label: "one"}
	ensure(t, n, masquerade)
	work := func() (requests uint32, allocations float64) {
		t.Helper()
		verify := func() {
			if diffs, err := n.Verify(t.Context(), Spec{Objects: []Object{masquerade}}, nil); err != nil || len(diffs) > 0 {
				t.Fatalf("differences %v, error %v", diffs, err)
			}
		}
		before := connOf(t, n.nft).Requests()
		verify()
		requests = connOf(t, n.nft).Requests() - before
		return requests, testing.AllocsPerRun(5, verify)
	}
	requests, allocations := work()
	if requests > 3 {
		t.Errorf("%d requests for one element, want its own and that of its chain, and one more at most", requests)
	}
	var chains strings.Builder
	chains.WriteString("table ip kube-proxy {\n")
	for i := range 3000 {
		fmt.Fprintf(&chains, "chain service-%d {\n}\n", i)
	}
	chains.WriteString("}\n")
	file := filepath.Join(t.TempDir(), "chains.nft")
	if err := os.WriteFile(file, []byte(chains.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "nft", "-f", file)
	if r, a := work(); r != requests || a > allocations+5 {
		t.Errorf("beside 3000 chains: %d requests, %v allocations; without: %d, %v", r, a, requests, allocations)
	}
}
