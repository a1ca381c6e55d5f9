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

// FuzzConf: whatever comes, ADD and CHECK know what to make of it.
func FuzzConf(f *testing.F) {
	rolestest.FuzzBuild(f, Role(), nil, `{"ipam":{"type":"host-local"}}`)
}
