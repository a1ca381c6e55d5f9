package portmap_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm attaches and detaches containers with ports at once, over calls that
// are killed and a ruleset that somebody flushes: the reference's scenario
// "parallel delete".
func TestStorm(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 12, Parallel: 4,
		Confs: []string{rolestest.WithKeys(t, bridge, map[string]any{"name": "ports", "cniVersion": "1.1.0"})},
		Chain: []string{`{"type":"portmap","conditionsV4":["!","-s","10.9.0.0/16"]}`},
		Runtime: func(n int) map[string]any {
			return map[string]any{"portMappings": []any{
				map[string]any{"hostPort": 8000 + n, "containerPort": 80, "protocol": "tcp"},
				map[string]any{"hostPort": 9000 + n, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
			}}
		},
		Meanwhile: func(*rolestest.Env) error {
			if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
	}.Run(t)
}
