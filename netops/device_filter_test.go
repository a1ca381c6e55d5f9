package netops_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
)

// TestDeviceFilters: filters of tc that drop, and others that do not, as iproute2 makes them.
func TestDeviceFilters(t *testing.T) {
	if os.Getenv("CNIBOX_TEST_VM") == "" {
		t.Skip("this kernel has no classifiers of tc but bpf: make test-vm")
	}
	n := newNet(t, nil)
	run(t, "ip", "link", "add", "far0", "type", "veth", "peer", "name", "far1")
	defer run(t, "ip", "link", "del", "far0")
	run(t, "tc", "qdisc", "add", "dev", "far0", "clsact")
	for filter, want := range map[string]*netops.DeviceFilter{
		"ingress pref 1 protocol all matchall action ok":                                          nil,
		"ingress pref 1 protocol all matchall action drop":                                        {Name: "tc filter of far0 ingress pref 1 matchall", IsAlways: true},
		"egress pref 1 protocol ip flower dst_ip 192.0.2.1 action drop":                           {Name: "tc filter of far0 egress pref 1 flower"},
		"egress pref 1 protocol ip flower dst_ip 192.0.2.1 action pass":                           nil,
		"egress pref 1 protocol ip u32 match ip dst 192.0.2.1 action drop":                        {Name: "tc filter of far0 egress pref 1 u32"},
		"ingress pref 1 protocol all matchall action police rate 1mbit burst 10k drop":            {Name: "tc filter of far0 ingress pref 1 matchall"},
		"egress pref 1 protocol ip u32 match ip dst 192.0.2.1 action mirred egress mirror dev lo": nil,
	} {
		run(t, append([]string{"tc", "filter", "add", "dev", "far0"}, strings.Fields(filter)...)...)
		all, err := n.DeviceFilters(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		have := all["far0"]
		if ok := len(have) == 1 && want != nil && have[0].Name == want.Name && have[0].IsAlways == want.IsAlways || len(have) == 0 && want == nil; !ok {
			t.Errorf("%s: %+v", filter, have)
		}
		run(t, "tc", "filter", "del", "dev", "far0", strings.Fields(filter)[0])
	}
	run(t, "tc", "qdisc", "add", "dev", "far1", "root", "netem", "loss", "10%")
	all, err := n.DeviceFilters(t.Context(), nil)
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(all)), []string{"far1"}) || all["far1"][0].Name != "qdisc netem of far1" {
		t.Errorf("%v, %v", all, err)
	}
}
