package netops_test

import (
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

// TestRemember: a Net that remembers reads a link and a sysctl once, and opens a namespace once while it is open.
func TestRemember(t *testing.T) {
	netopstest.New(t).Do(t, func() error {
		n := newNet(t, nil)
		mustApply := func(up bool) {
			t.Helper()
			if err := n.Clone().Ensure(t.Context(), netops.Spec{Objects: []netops.Object{
				&netops.Link{Name: "lo", Up: up, Down: !up}, &netops.Sysctl{Key: "net/ipv4/ip_forward", Value: map[bool]string{true: "1", false: "0"}[up]},
			}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		have := func() [2]bool {
			t.Helper()
			l, err := n.Link(t.Context(), nil, "lo")
			if err != nil {
				t.Fatal(err)
			}
			v, err := n.Sysctl(t.Context(), nil, "net/ipv4/ip_forward")
			if err != nil {
				t.Fatal(err)
			}
			return [2]bool{l.Up, v == "1"}
		}
		mustApply(false)
		forget, err := n.Remember()
		if err != nil {
			t.Fatal(err)
		}
		have()
		mustApply(true)
		if got := have(); got != [2]bool{} {
			t.Errorf("remembered %v", got)
		}
		path := netopstest.New(t).Path()
		outer, err := n.OpenNamespace(path)
		if err != nil {
			t.Fatal(err)
		}
		inner, err := n.OpenNamespace(path)
		if err != nil || inner != outer {
			t.Errorf("a second namespace: %v", err)
		}
		if err := inner.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Links(t.Context(), outer); err != nil {
			t.Errorf("after the inner Close: %v", err)
		}
		if err := outer.Close(); err != nil {
			t.Fatal(err)
		}
		if again, err := n.OpenNamespace(path); err != nil || again == outer || again.Close() != nil {
			t.Errorf("a closed namespace was used again: %v", err)
		}
		forget()
		if got := have(); got != [2]bool{true, true} {
			t.Errorf("after forget: %v", got)
		}
		return nil
	})
}
