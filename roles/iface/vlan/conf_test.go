package vlan

import (
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/store"
)

// TestValidate has the bounds of vlanId, which the reference tells wrong, and of the other keys.
func TestValidate(t *testing.T) {
	for _, c := range []struct{ name, conf, fault string }{
		{"empty", `{}`, "master"},
		{"all good", `{"master":"lan0","vlanId":100,"mtu":9000,"linkInContainer":true}`, ""},
		{"0", `{"master":"lan0","vlanId":0}`, ""},
		{"4094", `{"master":"lan0","vlanId":4094}`, ""},
		{"4095", `{"master":"lan0","vlanId":4095}`, "vlanId"},
		{"negative", `{"master":"lan0","vlanId":-1}`, "vlanId"},
		{"text", `{"master":"lan0","vlanId":"100"}`, "vlanId"},
		{"mtu negative", `{"master":"lan0","mtu":-1}`, "mtu"},
		{"mtu of the wrong type", `{"master":"lan0","mtu":"1500"}`, "mtu"},
		{"mtu fraction", `{"master":"lan0","mtu":1.5}`, "mtu"},
		{"master name", `{"master":"a b"}`, "master"},
		{"master name too long", `{"master":"sixteen-bytes-if"}`, "master"},
		{"unknown keys are tolerated", `{"master":"lan0","color":"blue"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newRole([]byte(c.conf))
			switch {
			case c.fault == "" && err != nil, c.fault != "" && err == nil:
				t.Errorf("%v, want %q", err, c.fault)
			case err != nil && (!errors.Is(err, roles.ErrConf) || !strings.HasPrefix(err.Error(), c.fault+": ")):
				t.Errorf("%v, want a fault of %q", err, c.fault)
			}
		})
	}
}

// FuzzConf: no configuration makes the role panic, and a valid one can be wired.
func FuzzConf(f *testing.F) {
	for _, s := range []string{`{"master":"lan0","vlanId":100,"mtu":9000}`, `{"vlanId":-1}`, `[]`, `{"prevResult":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := newRole(data)
		if err != nil {
			return
		}
		in := &attach.Input{
			Key: store.Key{Network: "n", ContainerID: "c", IfName: "eth0"}, ContainerMAC: "02:00:00:00:00:c1",
			Observed: attach.MasterLink{Name: "lan0", MAC: "02:00:00:00:00:a0", MTU: 1 << 62},
		}
		w, err := r.Wire(in)
		if err != nil || len(w.Spec.Objects) == 0 || w.MAC == "" {
			t.Errorf("%s: %+v, %v", data, w, err)
		}
	})
}
