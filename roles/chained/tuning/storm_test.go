package tuning_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm attaches and detaches containers in parallel, with calls that are
// killed. Nothing is left.
func TestStorm(t *testing.T) {
	conf := rolestest.WithKeys(t, bridge, map[string]any{"name": "storm", "cniVersion": "1.1.0"})
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Confs: []string{conf},
		Chain:      []string{strings.Replace(withoutMTU6, `"mac":"02:00:00:00:00:aa",`, "", 1)},
		Containers: 24, Parallel: 8,
	}.Run(t)
}
