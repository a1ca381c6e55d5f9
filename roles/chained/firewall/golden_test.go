package firewall

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json the container is on the
// bridge cni0 and no firewall drops forwarded packets.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			o := observed{Link: "cni0", Bridge: true, Port: "vethhost", Hairpin: true}
			if len(seen) > 0 {
				o = observed{}
				if err := json.Unmarshal(seen, &o); err != nil {
					return nil, err
				}
			}
			return o, nil
		},
	}.Run(t)
}
