package dummy

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
	rolestest.FuzzBuild(f, Role(), nil, `{"ipam":{"type":"host-local"}}`)
}
