package vlan

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json the master is lan0.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			m := attach.MasterLink{Name: "lan0", MAC: "02:00:00:00:00:a0", MTU: 1500}
			if len(seen) == 0 {
				return m, nil
			}
			m = attach.MasterLink{}
			err := json.Unmarshal(seen, &m)
			return m, err
		},
	}.Run(t)
}
