package vrf

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json nothing is in the way,
// and nothing to be kept.
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

// FuzzConf decodes, validates and wires whatever comes.
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
