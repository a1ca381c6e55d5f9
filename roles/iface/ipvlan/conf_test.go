package ipvlan

import (
	"errors"
	"net"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/store"
)

// TestValidate: every key, in and out of bounds.
func TestValidate(t *testing.T) {
	for _, c := range []struct{ name, conf, fault string }{
		{"empty", `{}`, ""},
		{"all good", `{"master":"lan0","mode":"l3","mtu":9000,"linkInContainer":true}`, ""},
		{"l2", `{"mode":"l2"}`, ""},
		{"l3s", `{"mode":"l3s"}`, ""},
		{"mode of a macvlan", `{"mode":"bridge"}`, "mode"},
		{"mode in capitals", `{"mode":"L2"}`, "mode"},
		{"mtu negative", `{"mtu":-1}`, "mtu"},
		{"mtu of the wrong type", `{"mtu":"1500"}`, "mtu"},
		{"mtu fraction", `{"mtu":1.5}`, "mtu"},
		{"master name", `{"master":"a b"}`, "master"},
		{"master name too long", `{"master":"sixteen-bytes-if"}`, "master"},
		{"unknown keys are tolerated", `{"color":"blue"}`, ""},
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
	for _, s := range []string{`{"master":"lan0","mode":"l3s","mtu":9000}`, `{"ipam":{"type":"x"}}`, `[]`, `{"prevResult":1}`} {
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
			Chained:  &roles.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.IP{10, 1, 0, 2}, Mask: net.CIDRMask(24, 32)}}}},
		}
		w, err := r.Wire(in)
		if err != nil || len(w.Spec.Objects) == 0 || w.MAC == "" {
			t.Errorf("%s: %+v, %v", data, w, err)
		}
	})
}
