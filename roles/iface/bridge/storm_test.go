package bridge_test

import (
	"testing"

	"github.com/google/nftables"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: 300 containers, 32 at a time, their plugins killed at random.
func TestStorm(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 300, Parallel: 32,
		Confs: []string{`{"cniVersion":"1.1.0","name":"storm","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/23"}]]}}`},
	}.Run(t)
}

// TestStormNetworks: three networks on one bridge, two with a MAC guard, while
// somebody flushes nftables' ruleset.
func TestStormNetworks(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 90, Parallel: 32, Meanwhile: flushRuleset,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"one","type":"bridge","bridge":"br0","macspoofchk":true,"ipMasq":true,
				"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`,
			`{"cniVersion":"1.1.0","name":"two","type":"bridge","bridge":"br0","macspoofchk":true,"isGateway":true,
				"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00:2::/64"}]]}}`,
			`{"cniVersion":"1.1.0","name":"three","type":"bridge","bridge":"br0","ipMasq":true,
				"ipam":{"type":"host-local","ranges":[[{"subnet":"10.3.0.0/24"}]]}}`,
		},
	}.Run(t)
}

// flushRuleset is `nft flush ruleset`.
func flushRuleset() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.FlushRuleset()
	return c.Flush()
}
