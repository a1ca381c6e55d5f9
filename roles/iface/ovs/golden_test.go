package ovs

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
			return o, json.Unmarshal(seen, &o)
		},
	}.Run(t)
}

// FuzzConf: ADD and CHECK handle any configuration without a panic.
func FuzzConf(f *testing.F) {
	rolestest.FuzzBuild(
		f, Role(), observed{},
		`{"bridge":"br1","vlan":100,"mtu":1400}`, `{"trunk":[{"id":5},{"minID":1,"maxID":4000}],"args":{"cni":{"ovnPort":"x"}}}`,
		`{"bridge":"br1","socket_file":"tcp:127.0.0.1:6640","link_state_check_retries":2147483647,"link_state_check_interval":1000,"ipam":{"type":"static"}}`,
	)
}
