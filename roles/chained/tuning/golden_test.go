package tuning

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			var o observed
			if len(seen) == 0 {
				return o, nil
			}
			err := json.Unmarshal(seen, &o)
			return o, err
		},
	}.Run(t)
}
