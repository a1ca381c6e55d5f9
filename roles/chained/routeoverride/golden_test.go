package routeoverride

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			var all []netops.Route
			if len(seen) == 0 {
				return all, nil
			}
			err := json.Unmarshal(seen, &all)
			return all, err
		},
	}.Run(t)
}

// FuzzConf: no configuration makes ADD or CHECK panic.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"flushroutes":true,"addroutes":[{"dst":"192.168.0.0/16","gw":"10.1.0.1"}],"args":{"cni":{"flushroutes":false,"delroutes":[{"dst":"::/0"}]}}}`))
	f.Add([]byte(`{"addroutes":[{"dst":"::ffff:1.2.3.4/99"},{"dst":"0.0.0.0/0"}]}`))
	f.Fuzz(func(t *testing.T, conf []byte) {
		r, err := rolestest.Read[*role](Role(), conf)
		if err != nil {
			return
		}
		if _, err := r.Build(&attach.Input{Chained: new(roles.Result)}); err != nil {
			t.Errorf("%s: %v", conf, err)
		}
	})
}
