package netops_test

import (
	"os"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestFeatures probes every feature, which changes nothing. The kernels of the virtual
// machine have all that need no newer version.
func TestFeatures(t *testing.T) {
	n := newNet(t, nil)
	before := netopstest.Snapshot(t)
	for _, f := range netops.Features() {
		if !f.IsProbed() {
			continue
		}
		has, err := n.HasFeature(t.Context(), &f)
		if err != nil || !has && f.Since == "" && os.Getenv("CNIBOX_TEST_VM") != "" {
			t.Errorf("%s: %t, %v", f.Name, has, err)
		}
		t.Log(f.Name, has)
	}
	if now := netopstest.Snapshot(t); now != before {
		t.Errorf("something was made:\n%s", now)
	}
	if list, err := n.Elements(t.Context(), "masq4"); err != nil || len(list) > 0 {
		t.Errorf("elements %v, %v", list, err)
	}
}
