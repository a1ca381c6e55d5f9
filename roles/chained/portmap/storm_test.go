package portmap_test

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm attaches and detaches containers with ports in parallel, with calls
// that are killed and a ruleset that is flushed repeatedly, which STATUS restores beside ADD and
// DEL: the reference's scenario "parallel delete".
func TestStorm(t *testing.T) {
	network := rolestest.WithKeys(t, bridge, map[string]any{"name": "ports", "cniVersion": "1.1.0"})
	status := rolestest.Call{Type: "bridge", Verb: "STATUS", Conf: network}
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 12, Parallel: 4, Short: true,
		Confs: []string{network},
		Chain: []string{`{"type":"portmap","conditionsV4":["!","-s","10.9.0.0/16"]}`},
		Runtime: func(n int) map[string]any {
			return map[string]any{"portMappings": []any{
				map[string]any{"hostPort": 8000 + n, "containerPort": 80, "protocol": "tcp"},
				map[string]any{"hostPort": 9000 + n, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
			}}
		},
		Meanwhile: func(e *rolestest.Env) error {
			if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			var calls []*exec.Cmd
			var err error
			for range 6 {
				c := e.Cmd(status)
				calls, err = append(calls, c), errors.Join(err, c.Start())
			}
			for _, c := range calls {
				err = errors.Join(err, c.Wait())
			}
			return err
		},
	}.Run(t)
}

// TestStormList runs containers through the whole list that podman and Kubernetes
// use, with plugins that are killed at random.
func TestStormList(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 300, Parallel: 32, Short: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"storm","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/23"}]]}}`},
		Chain: []string{
			`{"type":"portmap"}`,
			`{"type":"firewall","ingressPolicy":"same-bridge"}`,
			`{"type":"tuning","mtu":1400,"sysctl":{"net.core.somaxconn":"1024"}}`,
			`{"type":"bandwidth"}`,
		},
		Runtime: func(n int) map[string]any {
			return map[string]any{
				"portMappings": []any{map[string]any{"hostPort": 8000 + n, "containerPort": 80, "protocol": "tcp"}},
				"bandwidth":    map[string]any{"egressRate": 8_000_000, "egressBurst": 800_000},
			}
		},
	}.Run(t)
}
