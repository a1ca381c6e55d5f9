package netops_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestDeleteLinks deletes links of both namespaces. It must not delete
// another program's link that has a recorded name, a single link, or links in
// other groups.
func TestDeleteLinks(t *testing.T) {
	ctx := t.Context()
	n, box := newNet(t, nil), netopstest.New(t)
	ns := open(t, n, box)
	pair := func(host, inside, label string) *netops.Link {
		return &netops.Link{In: netops.Host, Name: host, Kind: "veth", Alias: label, Peer: &netops.Peer{In: netops.Container, Name: inside}}
	}
	labels := []string{strings.Replace(testLabel, ":", ":a", 1), strings.Replace(testLabel, ":", ":b", 1), strings.Replace(testLabel, ":", ":c", 1)}
	before := netopstest.Snapshot(t) + box.Snapshot(t)
	stays := netops.Spec{Objects: []netops.Object{pair("dtstay", "stay", labels[2])}}
	if err := n.Ensure(ctx, stays, ns); err != nil {
		t.Fatal(err)
	}
	with := netopstest.Snapshot(t) + box.Snapshot(t)
	links := []*netops.Link{pair("dta", "a", labels[0]), pair("dtb", "b", labels[1]), pair("dtnone", "none", labels[1])}
	made := netops.Spec{Objects: []netops.Object{links[0], links[1]}}
	if err := n.Ensure(ctx, made, ns); err != nil {
		t.Fatal(err)
	}
	// One of the two links has another label, so no link is deleted.
	all := netopstest.Snapshot(t) + box.Snapshot(t)
	if err := n.DeleteLinks(ctx, []*netops.Link{links[0], pair("dtstay", "stay", labels[0])}, ns); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(all, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
		t.Errorf("one link and another program's (-before +after):\n%s", d)
	}
	recorder := &netopstest.Recorder{}
	again := newNet(t, recorder)
	if err := again.DeleteLinks(ctx, append(links, pair("dtstay", "stay", labels[0])), open(t, again, box)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(with, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
	if len(recorder.Steps) != 2 {
		t.Errorf("steps: %v", recorder.Steps)
	}
	// Delete the links of the container, which have their labels.
	inside := func(name, label string) *netops.Link {
		return &netops.Link{In: netops.Container, Name: name, Kind: "bridge", Alias: label}
	}
	bridges := []*netops.Link{inside("bra", labels[0]), inside("brb", labels[1])}
	if err := n.Ensure(ctx, netops.Spec{Objects: []netops.Object{bridges[0], bridges[1]}}, ns); err != nil {
		t.Fatal(err)
	}
	for _, container := range []*netops.Namespace{nil, ns, ns} {
		if err := n.DeleteLinks(ctx, bridges, container); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Remove(ctx, stays, ns); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, netopstest.Snapshot(t)+box.Snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
}
