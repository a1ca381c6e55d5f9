package bridge

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar. Without seen.json neither the bridge nor
// the VLAN's gateway interface exists.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			s := struct {
				Bridge, Gateway hostLink
				FollowsPorts    bool
			}{Bridge: hostLink{MAC: "02:00:00:00:00:b0"}, Gateway: hostLink{MAC: "02:00:00:00:00:ff"}}
			if len(seen) > 0 {
				if err := json.Unmarshal(seen, &s); err != nil {
					return nil, err
				}
			}
			return observed{bridge: s.Bridge, gateway: s.Gateway, followsPorts: s.FollowsPorts}, nil
		},
	}.Run(t)
}

// FuzzConf: ADD and CHECK handle any configuration without a panic.
func FuzzConf(f *testing.F) {
	rolestest.FuzzBuild(
		f, Role(),
		observed{bridge: hostLink{MAC: "02:00:00:00:00:b0"}, gateway: hostLink{MAC: "02:00:00:00:00:ff"}},
		`{"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"vlan":100,"macspoofchk":true,"mtu":1400}`,
		`{"vlanTrunk":[{"id":101},{"minID":200,"maxID":210}],"preserveDefaultVlan":true,"disableContainerInterface":true}`,
		`{"runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"mac":""}},"enabledad":true,"forceAddress":true,"isGateway":true}`,
		`{"ipMasq":true,"egressAddress":"203.0.113.7","egressExcept":["10.0.0.0/8","fd00::/8"]}`,
	)
}
