package vlan

import (
	"testing"

	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestValidate checks the bounds of all keys. The reference's message about
// vlanId is wrong.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`, Paths: []string{"master"}},
		{Name: "all good", Conf: `{"master":"lan0","vlanId":100,"mtu":9000,"linkInContainer":true}`},
		{Name: "0", Conf: `{"master":"lan0","vlanId":0}`},
		{Name: "4094", Conf: `{"master":"lan0","vlanId":4094}`},
		{Name: "4095", Conf: `{"master":"lan0","vlanId":4095}`, Paths: []string{"vlanId"}},
		{Name: "negative", Conf: `{"master":"lan0","vlanId":-1}`, Paths: []string{"vlanId"}},
		{Name: "text", Conf: `{"master":"lan0","vlanId":"100"}`, Paths: []string{"vlanId"}},
		{Name: "mtu negative", Conf: `{"master":"lan0","mtu":-1}`, Paths: []string{"mtu"}},
		{Name: "mtu of the wrong type", Conf: `{"master":"lan0","mtu":"1500"}`, Paths: []string{"mtu"}},
		{Name: "mtu fraction", Conf: `{"master":"lan0","mtu":1.5}`, Paths: []string{"mtu"}},
		{Name: "master name", Conf: `{"master":"a b"}`, Paths: []string{"master"}},
		{Name: "master name too long", Conf: `{"master":"sixteen-bytes-if"}`, Paths: []string{"master"}},
		{Name: "unknown keys are tolerated", Conf: `{"master":"lan0","color":"blue"}`},
	})
}

// FuzzConf: no configuration makes the role panic, and a valid one has a spec.
func FuzzConf(f *testing.F) {
	for _, s := range []string{`{"master":"lan0","vlanId":100,"mtu":9000}`, `{"vlanId":-1}`, `[]`, `{"prevResult":1}`} {
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
		}
		w, err := r.Build(in)
		if err != nil || len(w.Spec.Objects) == 0 || w.MAC == "" {
			t.Errorf("%s: %+v, %v", data, w, err)
		}
	})
}
