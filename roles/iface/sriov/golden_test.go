package sriov

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// seenFunction is the VF of goldens without seen.json.
func seenFunction() function {
	return function{
		Address: "0000:03:02.1", Path: "/sys/devices/pci0000:00/0000:03:02.1", PF: "ens1f0", Number: 1,
		Link: "ens1f0v1", MAC: "52:54:00:00:00:01", MTU: 1500,
	}
}

// TestGolden runs testdata/*.txtar.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			f := seenFunction()
			if len(seen) > 0 {
				f = function{}
				if err := json.Unmarshal(seen, &f); err != nil {
					return nil, err
				}
			}
			return f, nil
		},
	}.Run(t)
}

// FuzzConf: no configuration makes ADD or CHECK panic, and each that is accepted gives a valid spec.
func FuzzConf(f *testing.F) {
	rolestest.FuzzBuild(f, Role(), seenFunction(),
		`{"deviceID":"0000:03:02.1","vlan":100,"vlanQoS":5,"vlanProto":"802.1ad","spoofchk":"on","trust":"off","link_state":"auto","ipam":{"type":"host-local"}}`,
		`{"vlan":-1,"vlanQoS":1e9,"min_tx_rate":-1,"max_tx_rate":4294967295,"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:02"}}`,
		`{"vlanProto":"802.1ad\u0000"}`, `{"logLevel":7}`)
}
