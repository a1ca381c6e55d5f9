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
		{Name: "netkit", Conf: `{"linkType":"netkit"}`},
		{Name: "veth, with a MAC that has no effect", Conf: `{"linkType":"veth","runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"mac":"x"}}}`},
		{Name: "unknown kind of pair", Conf: `{"linkType":"dummy"}`, Paths: []string{"linkType"}},
		{Name: "netkit has no MAC", Conf: `{"linkType":"netkit","runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"mac":"02:00:00:00:00:01"}}}`, Paths: []string{"runtimeConfig.mac", "args.cni.mac"}},
		{Name: "wrong type", Conf: `{"mtu":"1400"}`, Paths: []string{"mtu"}},
		{Name: "wrong type of a key of all", Conf: `{"dns":7}`, Paths: []string{"dns"}},
	})
}
