package netops_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
)

// TestTxChecksum switches the offload of an existing link off and on. A link that cannot switch it is refused.
func TestTxChecksum(t *testing.T) {
	n := newNet(t, nil)
	run(t, "ip", "link", "add", "off0", "type", "vxlan", "id", "77", "dstport", "4789")
	defer run(t, "ip", "link", "del", "off0")
	spec := func(link, value string) netops.Spec {
		return netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Host, Shared: true, Name: link, TxChecksum: value}}}
	}
	for _, c := range []struct{ value, plan string }{
		{"on", ""}, {"off", "set link off0 tx-checksum off"}, {"off", ""}, {"on", "set link off0 tx-checksum on"}, {"on", ""},
	} {
		plan, err := n.Plan(t.Context(), spec("off0", c.value), nil)
		text := ""
		for _, change := range plan.Changes {
			text += fmt.Sprintf("%s %s", change.Do.Verb, change.Do.Object)
		}
		if err != nil || text != c.plan {
			t.Fatalf("%s: plan %q, %v", c.value, text, err)
		}
		diffs, err := n.Verify(t.Context(), spec("off0", c.value), nil)
		if err != nil || len(diffs) == 1 != (c.plan != "") {
			t.Errorf("%s: differences %v, %v", c.value, diffs, err)
		}
		if err := n.Apply(t.Context(), plan, nil); err != nil {
			t.Fatal(err)
		}
	}
	err := n.Ensure(t.Context(), spec("lo", "off"), nil)
	if !errors.Is(err, netops.ErrNotSupported) || !strings.Contains(err.Error(), `link "lo": tx-checksum`) {
		t.Errorf("lo: %v", err)
	}
	for _, l := range []*netops.Link{
		{In: netops.Host, Shared: true, Name: "off0", TxChecksum: "of"},
		{In: netops.Host, Name: "off0", TxChecksum: "off"},
		{In: netops.Host, Shared: true, Name: "new0", Kind: "vxlan", TxChecksum: "off"},
	} {
		if _, err := n.Plan(t.Context(), netops.Spec{Objects: []netops.Object{l}}, nil); !errors.Is(err, netops.ErrInvalid) {
			t.Errorf("%s: %v", l, err)
		}
	}
}
