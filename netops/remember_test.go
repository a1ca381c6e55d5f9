package netops_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestRemember: a Net that remembers reads a link and a sysctl once, and opens a namespace once while it is open.
func TestRemember(t *testing.T) {
	n := newNet(t, nil)
	const key = "net/ipv4/ip_default_ttl"
	state := func() (exists bool, ttl string) {
		t.Helper()
		_, err := n.Link(t.Context(), nil, "remember0")
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			t.Fatal(err)
		}
		ttl, readErr := n.Sysctl(t.Context(), nil, key)
		if readErr != nil {
			t.Fatal(readErr)
		}
		return err == nil, ttl
	}
	forget, err := n.Remember()
	if err != nil {
		t.Fatal(err)
	}
	_, first := state()
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Name: "remember0", Kind: "bridge"}, &netops.Sysctl{In: netops.Host, Key: key, Value: "61"},
	}}
	changer := newNet(t, nil)
	if err := changer.Ensure(t.Context(), spec, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		spec.Objects[1] = &netops.Sysctl{In: netops.Host, Key: key, Value: first}
		if err := errors.Join(changer.Remove(context.Background(), netops.Spec{Objects: spec.Objects[:1]}, nil), changer.Ensure(context.Background(), netops.Spec{Objects: spec.Objects[1:]}, nil)); err != nil {
			t.Error(err)
		}
	})
	if exists, ttl := state(); exists || ttl != first {
		t.Errorf("remembered %t %s", exists, ttl)
	}
	path := netopstest.New(t).Path()
	outer, inner := open(t, n, netopstest.New(t)), (*netops.Namespace)(nil)
	if inner, err = n.OpenNamespace(outer.Path()); err != nil || inner != outer {
		t.Errorf("a second namespace: %v", err)
	}
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Links(t.Context(), outer); err != nil {
		t.Errorf("after the inner Close: %v", err)
	}
	if other, err := n.OpenNamespace(path); err != nil || other == outer || other.Close() != nil {
		t.Errorf("another namespace: %v", err)
	}
	forget()
	if exists, ttl := state(); !exists || ttl != "61" {
		t.Errorf("after forget: %t %s", exists, ttl)
	}
}

// TestRememberHostEnd: the second namespace has the first one's file descriptor, and is not taken for it.
func TestRememberHostEnd(t *testing.T) {
	n := newNet(t, nil)
	forget, err := n.Remember()
	if err != nil {
		t.Fatal(err)
	}
	defer forget()
	for _, name := range []string{"rh0", "rh1"} {
		box := netopstest.New(t)
		run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", box.Path())
		defer run(t, "ip", "link", "del", name)
		ns, err := n.OpenNamespace(box.Path())
		if err != nil {
			t.Fatal(err)
		}
		if l, err := n.HostEnd(t.Context(), ns, "eth0"); err != nil || l.Name != name {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		if err := ns.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
