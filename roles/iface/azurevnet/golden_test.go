package azurevnet

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json the node's interface is eth0.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			o := observed{Master: master{Name: "eth0", MAC: "00:0d:3a:51:c4:90", MTU: 1500, Index: 2}, Bridge: "azure0"}
			if len(seen) == 0 {
				return o, nil
			}
			return o, json.Unmarshal(seen, &o)
		},
	}.Run(t)
}
