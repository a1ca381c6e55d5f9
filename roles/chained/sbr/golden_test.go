package sbr

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar: the reference's scenarios "basic", "default
// route preset", "several IPs", "table", "static gw v4/v6/both", "two v4 gws
// rejected", "addSourceHints" and more.
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
