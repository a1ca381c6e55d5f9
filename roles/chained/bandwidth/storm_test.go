package bandwidth_test

import (
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: containers with limits, with plugins that are killed at random.
func TestStorm(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 60, Parallel: 16,
		Confs: []string{`{"cniVersion":"1.1.0","name":"storm","type":"bridge","bridge":"br0","isDefaultGateway":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`},
		Chain: []string{both},
	}.Run(t)
}
