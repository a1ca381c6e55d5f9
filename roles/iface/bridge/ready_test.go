package bridge_test

import (
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestReady: a container can send and receive when ADD returns on a busy node. The first
// packets were lost there.
func TestReady(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	rolestest.Ready{
		Table: all.Table(), Type: "bridge",
		Conf: rolestest.WithKeys(t, gateway, map[string]any{"cniVersion": "1.1.0"}),
	}.Run(t)
}
