package hostdevice

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json the device is the virtual
// device nic0.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			s := selected{Link: "nic0", MAC: "02:00:00:00:00:01"}
			if len(seen) > 0 {
				s = selected{}
				if err := json.Unmarshal(seen, &s); err != nil {
					return nil, err
				}
			}
			return s, nil
		},
	}.Run(t)
}
