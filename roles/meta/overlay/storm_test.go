package overlay_test

import (
	"fmt"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: 120 containers of both families (300 in a soak), 32 at a time, with plugins
// that are killed at random.
func TestStorm(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "vxlan", Containers: 300, Parallel: 32,
		Confs: []string{fmt.Sprintf(`{"cniVersion":"1.1.0","name":"storm","type":"vxlan","overlayFile":%q,"delegate":{"isDefaultGateway":true}}`, handOff(t))},
	}.Run(t)
}
