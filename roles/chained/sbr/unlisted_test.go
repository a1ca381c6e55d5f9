package sbr_test

import (
	"strings"
	"testing"
)

// TestUnlistedInterface: an address whose interface the result does not list is the
// container's, as with the reference. sbr passes such a prevResult on.
func TestUnlistedInterface(t *testing.T) {
	n := newNode(t)
	result := n.OK(n.call("ADD", 0, "bridge", "")).Stdout
	for _, index := range []string{"7", "-1"} {
		prev := strings.ReplaceAll(result, `"interface": 2`, `"interface": `+index)
		if prev == result {
			t.Fatalf("no address of interface 2 in %s", result)
		}
		c := n.call("ADD", 0, "sbr", prev)
		if a := n.OK(c); !strings.Contains(a.Stdout, `"interface": `+index) {
			t.Errorf("the result of sbr is %s", a.Stdout)
		}
		if !strings.Contains(n.ns.Snapshot(t), "10.1.0.2/32") {
			t.Errorf("no rule for 10.1.0.2:\n%s", n.ns.Snapshot(t))
		}
		c.Verb = "DEL"
		n.OK(c)
	}
	n.OK(n.call("DEL", 0, "bridge", ""))
}
