package ptp

import (
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role:     Role(),
		Observed: func([]byte) (any, error) { return observed{}, nil },
	}.Run(t)
}

// FuzzConf: ADD and CHECK handle any configuration without a panic.
func FuzzConf(f *testing.F) {
	rolestest.FuzzBuild(
		f, Role(), observed{},
		`{"ipMasq":true,"mtu":1400}`, `{"hostAddressing":true,"ipam":{"type":"static"},"ipMasq":true}`,
		`{"ipMasq":true,"egressAddress":["203.0.113.7","2001:db8::7"],"egressExcept":["10.0.0.0/8","10.1.0.0/16"]}`,
	)
}
