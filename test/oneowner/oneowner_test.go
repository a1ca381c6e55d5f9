package oneowner

import (
	"net/netip"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestJudges: an address may be given while the call runs that takes it from its last owner, and not before or twice.
func TestJudges(t *testing.T) {
	a := netip.MustParseAddr("10.9.0.1")
	op := func(by string, del bool, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: change{a, by, del}, Call: call, Return: end}
	}
	for _, c := range []struct {
		name string
		ops  []porcupine.Operation
		want bool
	}{
		{"beside DEL", []porcupine.Operation{op("x", false, 1, 2), op("x", true, 5, 8), op("y", false, 4, 7)}, true},
		{"before DEL", []porcupine.Operation{op("x", false, 1, 2), op("x", true, 5, 8), op("y", false, 3, 4)}, false},
		{"without DEL", []porcupine.Operation{op("x", false, 1, 5), op("y", false, 2, 4)}, false},
	} {
		if got := porcupine.CheckOperations(oneOwner, c.ops); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
