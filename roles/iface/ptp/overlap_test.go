package ptp_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestOverlap: two networks have overlapping subnets. The kernel holds only the
// wider network's entry if the narrower one was added later or begins with the
// same address. When the wider network is removed, the narrower one's entry is
// created.
func TestOverlap(t *testing.T) {
	const narrow = `{"name":"narrow","type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	wider := map[string]string{
		"around":         `{"name":"wide","type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/8","rangeStart":"10.9.0.2"}]]}}`,
		"same beginning": `{"name":"wide","type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/16","rangeStart":"10.1.9.2"}]]}}`,
	}
	for name, wide := range wider {
		for _, order := range [][]string{{wide, narrow}, {narrow, wide}} {
			t.Run(name, func(t *testing.T) {
				e := rolestest.NewEnv(t, all.Table())
				pristine := e.State([]string{"sysctl net/"})
				pods := map[string]*pod{}
				for i, conf := range order {
					pods[conf] = attach(t, e, conf, fmt.Sprint("c", i))
				}
				pods[wide].detach(e)
				collect(t, e, wide)
				if have := masqueraded(t); !slices.Equal(have, []string{"10.1.0.0/24"}) {
					t.Errorf("after GC of the wider network %s are masqueraded", have)
				}
				pods[narrow].detach(e)
				collect(t, e, narrow)
				if have := e.State([]string{"sysctl net/"}); have != pristine {
					t.Errorf("after GC of both:\n%s\nbefore:\n%s", have, pristine)
				}
			})
		}
	}
}

// masqueraded are the subnets of the kernel's entries.
func masqueraded(t *testing.T) (subnets []string) {
	t.Helper()
	n := netops.New(netops.Options{})
	defer n.Close()
	all, err := n.Elements(t.Context(), "masq_kind4")
	must(t, err)
	for _, e := range all {
		subnets = append(subnets, e.Key[1])
	}
	return subnets
}
