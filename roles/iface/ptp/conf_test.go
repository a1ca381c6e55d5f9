package ptp

import (
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate: all errors are reported at once, each with its path.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"ipMasq":true,"ipMasqBackend":"nftables","mtu":9000,"hostAddressing":true,"ipam":{"type":"host-local"}}`},
		{Name: "iptables is accepted", Conf: `{"ipMasqBackend":"iptables"}`},
		{Name: "unknown keys are tolerated", Conf: `{"color":"blue"}`},
		{Name: "backend", Conf: `{"ipMasqBackend":"pf"}`, Paths: []string{"ipMasqBackend"}},
		{Name: "mtu negative", Conf: `{"mtu":-1}`, Paths: []string{"mtu"}},
		{Name: "mtu too large", Conf: `{"mtu":65536}`, Paths: []string{"mtu"}},
		{Name: "host addressing on layer 2", Conf: `{"hostAddressing":true}`, Paths: []string{"hostAddressing"}},
		{Name: "several at once", Conf: `{"mtu":-5,"ipMasqBackend":"pf","hostAddressing":true}`, Paths: []string{"ipMasqBackend", "mtu", "hostAddressing"}},
		{Name: "wrong type", Conf: `{"mtu":"1400"}`, Paths: []string{"mtu"}},
		{Name: "wrong type of a key of all", Conf: `{"dns":7}`, Paths: []string{"dns"}},
	})
}
