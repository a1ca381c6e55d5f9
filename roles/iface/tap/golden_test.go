package tap

import (
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role:     Role(),
		Observed: func([]byte) (any, error) { return nil, nil },
	}.Run(t)
}

// FuzzConf: ADD and CHECK handle any configuration without a panic.
func FuzzConf(f *testing.F) {
	rolestest.FuzzBuild(
		f, Role(), nil,
		`{"multiQueue":true,"mtu":1400,"mac":"02:00:00:00:00:01","owner":0,"group":7,"bridge":"br0"}`, `{"runtimeConfig":{"mac":"02:00:00:00:00:02"}}`,
	)
}
