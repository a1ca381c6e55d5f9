package ipvlan

import (
	"net"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestValidate: every key with valid and invalid values.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"master":"lan0","mode":"l3","mtu":9000,"linkInContainer":true}`},
		{Name: "l2", Conf: `{"mode":"l2"}`},
		{Name: "l3s", Conf: `{"mode":"l3s"}`},
		{Name: "mode of a macvlan", Conf: `{"mode":"bridge"}`, Paths: []string{"mode"}},
		{Name: "mode in capitals", Conf: `{"mode":"L2"}`, Paths: []string{"mode"}},
		{Name: "mtu negative", Conf: `{"mtu":-1}`, Paths: []string{"mtu"}},
		{Name: "mtu of the wrong type", Conf: `{"mtu":"1500"}`, Paths: []string{"mtu"}},
		{Name: "mtu fraction", Conf: `{"mtu":1.5}`, Paths: []string{"mtu"}},
		{Name: "master name", Conf: `{"master":"a b"}`, Paths: []string{"master"}},
		{Name: "master name too long", Conf: `{"master":"sixteen-bytes-if"}`, Paths: []string{"master"}},
		{Name: "unknown keys are tolerated", Conf: `{"color":"blue"}`},
	})
}

// FuzzConf: no configuration makes the role panic, and a valid one has a spec.
func FuzzConf(f *testing.F) {
	for _, s := range []string{`{"master":"lan0","mode":"l3s","mtu":9000}`, `{"ipam":{"type":"x"}}`, `[]`, `{"prevResult":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := rolestest.Read[*role](Role(), data)
		if err != nil {
			return
		}
		in := &attach.Input{
			Key: store.Key{Network: "n", ContainerID: "c", IfName: "eth0"}, ContainerMAC: "02:00:00:00:00:c1",
			Observed: attach.MasterLink{Name: "lan0", MAC: "02:00:00:00:00:a0", MTU: 1 << 62},
			Chained:  &roles.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.IP{10, 1, 0, 2}, Mask: net.CIDRMask(24, 32)}}}},
		}
		w, err := r.Build(in)
		if err != nil || len(w.Spec.Objects) == 0 || w.MAC == "" {
			t.Errorf("%s: %+v, %v", data, w, err)
		}
	})
}
