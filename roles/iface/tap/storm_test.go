package tap_test

import (
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: many taps at once, with calls that are killed at random. A device
// becomes persistent only after it is labelled, so none is left.
func TestStorm(t *testing.T) {
	needs(t)
	rolestest.Storm{
		Table: all.Table(), Type: "tap", Containers: 32, Parallel: 8,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"storm","type":"tap","multiQueue":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.8.0.0/16"}],[{"subnet":"fd08::/64"}]]}}`,
		},
	}.Run(t)
}
