package ptp

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

// TestValidate: every fault is told at once, with its path.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		paths      []string
	}{
		{"empty", `{}`, nil},
		{"all good", `{"ipMasq":true,"ipMasqBackend":"nftables","mtu":9000,"hostAddressing":true,"ipam":{"type":"host-local"}}`, nil},
		{"iptables is accepted", `{"ipMasqBackend":"iptables"}`, nil},
		{"unknown keys are tolerated", `{"color":"blue"}`, nil},
		{"backend", `{"ipMasqBackend":"pf"}`, []string{"ipMasqBackend"}},
		{"mtu negative", `{"mtu":-1}`, []string{"mtu"}},
		{"mtu too large", `{"mtu":65536}`, []string{"mtu"}},
		{"host addressing on layer 2", `{"hostAddressing":true}`, []string{"hostAddressing"}},
		{"several at once", `{"mtu":-5,"ipMasqBackend":"pf","hostAddressing":true}`, []string{"ipMasqBackend", "mtu", "hostAddressing"}},
		{"wrong type", `{"mtu":"1400"}`, []string{"mtu"}},
		{"wrong type of a key of all", `{"dns":7}`, []string{"dns"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Role().New([]byte(c.conf))
			if diff := cmp.Diff(c.paths, paths(err)); diff != "" {
				t.Errorf("faults (-want +have):\n%s\n%v", diff, err)
			}
			if err != nil && !errors.Is(err, roles.ErrConf) {
				t.Errorf("%v is not ErrConf", err)
			}
		})
	}
}

// paths lists the paths of all faults in an error.
func paths(err error) []string {
	var one *roles.ConfError
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var out []string
		for _, e := range j.Unwrap() {
			out = append(out, paths(e)...)
		}
		return out
	}
	if errors.As(err, &one) {
		return []string{one.Path}
	}
	return nil
}
