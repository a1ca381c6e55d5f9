package bridge_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStorm: 300 containers, 32 at a time, with plugins that are killed at
// random.
func TestStorm(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 300, Parallel: 32, Whole: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"storm","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/23"}]]}}`},
	}.Run(t)
}

// TestStormNetworks: three networks on one bridge, two of them with MAC
// spoofing protection, while the nftables ruleset is flushed repeatedly.
func TestStormNetworks(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 90, Parallel: 32,
		Meanwhile: func(*rolestest.Env) error { return flushRuleset() },
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

// TestStormStateLost: /run/cnibox is deleted repeatedly while containers are
// attached and detached.
func TestStormStateLost(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 90, Parallel: 16, Short: true, Meanwhile: deleteState,
		Confs: []string{`{"cniVersion":"1.1.0","name":"storm","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeEnd":"10.1.0.100"}]]}}`},
	}.Run(t)
}

// deleteState is `rm -r /run/cnibox/*`.
func deleteState(e *rolestest.Env) error {
	found, err := os.ReadDir(e.RunDir())
	for _, d := range found {
		rm := os.RemoveAll(filepath.Join(e.RunDir(), d.Name()))
		if !errors.Is(rm, unix.ENOTEMPTY) { // a plugin has written a file meanwhile
			err = errors.Join(err, rm)
		}
	}
	return err
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
