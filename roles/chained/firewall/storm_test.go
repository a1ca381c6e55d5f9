package firewall_test

import (
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: containers of three networks are attached and detached with
// Docker's rules present, 32 at a time, with plugins that are killed at random,
// while our rules are flushed repeatedly.
func TestStorm(t *testing.T) {
	docker(t)
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 60, Parallel: 32,
		Meanwhile: func(*rolestest.Env) error {
			_ = exec.Command("iptables-nft", "-F", "CNI-FORWARD").Run() // the chain may not exist yet
			return nil
		},
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"one","type":"bridge","bridge":"br1","isGateway":true,
				"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`,
			`{"cniVersion":"1.1.0","name":"two","type":"bridge","bridge":"br2","isGateway":true,
				"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}]]}}`,
			`{"cniVersion":"1.1.0","name":"three","type":"bridge","bridge":"br2",
				"ipam":{"type":"host-local","ranges":[[{"subnet":"10.3.0.0/24"}]]}}`,
		},
		Chain: []string{`{"type":"firewall","ingressPolicy":"isolated"}`},
	}.Run(t)
}
