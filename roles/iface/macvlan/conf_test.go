package macvlan

import (
	"testing"

	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestValidate: every key with valid and invalid values.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"master":"lan0","mode":"private","mtu":9000,"mac":"02:00:00:00:00:01","linkInContainer":true,"bcqueuelen":4294967295}`},
		{Name: "vepa", Conf: `{"mode":"vepa"}`},
		{Name: "passthru", Conf: `{"mode":"passthru"}`},
		{Name: "bridge", Conf: `{"mode":"bridge"}`},
		{Name: "mode source", Conf: `{"mode":"source"}`, Paths: []string{"mode"}},
		{Name: "mode in capitals", Conf: `{"mode":"Bridge"}`, Paths: []string{"mode"}},
		{Name: "mac of a group", Conf: `{"mac":"01:00:5e:00:00:01"}`, Paths: []string{"mac"}},
		{Name: "mac of zeros", Conf: `{"mac":"00:00:00:00:00:00"}`, Paths: []string{"mac"}},
		{Name: "mac of 8 bytes", Conf: `{"mac":"02:00:00:00:00:00:00:01"}`, Paths: []string{"mac"}},
		{Name: "runtime mac", Conf: `{"runtimeConfig":{"mac":"x"}}`, Paths: []string{"runtimeConfig.mac"}},
		{Name: "queue negative", Conf: `{"bcqueuelen":-1}`, Paths: []string{"bcqueuelen"}},
		{Name: "queue too long", Conf: `{"bcqueuelen":4294967296}`, Paths: []string{"bcqueuelen"}},
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
	for _, s := range []string{`{"master":"lan0","mode":"private","mtu":9000,"bcqueuelen":1}`, `{"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":""}}`, `[]`, `{"prevResult":1}`} {
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
