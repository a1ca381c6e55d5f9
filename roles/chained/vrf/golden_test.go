package vrf

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json the namespace has no
// other VRF and no route to move.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			var o observed
			if len(seen) > 0 {
				if err := json.Unmarshal(seen, &o); err != nil {
					return nil, err
				}
			}
			return o, nil
		},
	}.Run(t)
}

// FuzzConf: decoding, validating and computing the spec do not panic.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"vrfname":"red","table":10}`))
	f.Add([]byte(`{"vrfname":"eth0/1","table":-1}`))
	f.Fuzz(func(t *testing.T, conf []byte) {
		r, err := rolestest.Read[*role](Role(), conf)
		if err != nil {
			return
		}
		w, err := r.Build(&attach.Input{Observed: observed{Used: []int{1, 2}}})
		if err != nil || len(w.Spec.Objects) != 1 {
			t.Errorf("%s: %v, %v", conf, w, err)
		}
	})
}
