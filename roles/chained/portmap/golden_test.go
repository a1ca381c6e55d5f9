package portmap

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
			o := observed{Toward4: device{Name: "cni0"}, Toward6: device{Name: "cni0", Index: 4}}
			if len(seen) == 0 {
				return o, nil
			}
			err := json.Unmarshal(seen, &o)
			return o, err
		},
	}.Run(t)
}
