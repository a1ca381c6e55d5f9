package bandwidth

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json the host's end is vethhost.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			o := observed{Name: "vethhost", MTU: 1500}
			if len(seen) == 0 {
				return o, nil
			}
			return o, json.Unmarshal(seen, &o)
		},
	}.Run(t)
}
