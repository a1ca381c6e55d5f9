package netops_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestVRFOfOtherKind: the name of another link is an error on every kernel, also on one without VRFs.
func TestVRFOfOtherKind(t *testing.T) {
	box := netopstest.New(t)
	inside(t, box, "ip", "link", "add", "red", "type", "veth", "peer", "name", "eth0")
	n := newNet(t, nil)
	ns := open(t, n, box)
	s := netops.Spec{Objects: []netops.Object{&netops.VRF{In: netops.Container, Name: "red", Table: 10, Link: "eth0"}}}
	_, err := n.Plan(context.Background(), s, ns)
	if !errors.Is(err, netops.ErrConflict) || !strings.Contains(err.Error(), `interface "red" is a link of kind "veth", not "vrf"`) {
		t.Error(err)
	}
}
