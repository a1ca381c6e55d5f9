package netops

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// loopbackNet returns a Net in a new namespace, with a bridge that has an
// address of each family.
func loopbackNet(t *testing.T) *Net {
	t.Helper()
	nstest.Fresh(t)
	for _, args := range []string{
		"link set lo up", "link add cni0 up type bridge", "addr add 10.1.0.1/24 dev cni0", "addr add fd01::1/64 dev cni0 nodad",
	} {
		nstest.Run(t, "ip", strings.Fields(args)...)
	}
	n := New(Options{})
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func TestRouteLink(t *testing.T) {
	n := loopbackNet(t)
	for _, v := range []struct{ to, want string }{{"10.1.0.7", "cni0"}, {"fd01::7", "cni0"}} {
		have, err := n.RouteLink(t.Context(), nil, netip.MustParseAddr(v.to))
		if err != nil || have != v.want {
			t.Errorf("to %s: %q, %v, want %q", v.to, have, err, v.want)
		}
		toward, err := n.LinkToward(t.Context(), nil, netip.MustParseAddr(v.to))
		link, linkErr := n.Link(t.Context(), nil, v.want)
		if err != nil || linkErr != nil || !reflect.DeepEqual(toward, link) {
			t.Errorf("to %s: %+v, %v, want %+v, %v", v.to, toward, err, link, linkErr)
		}
	}
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		if have, err := n.RouteLink(t.Context(), nil, netip.MustParseAddr(to)); !errors.Is(err, ErrNotExist) {
			t.Errorf("to %s: %q, %v, want ErrNotExist", to, have, err)
		}
	}
}

func TestLocalRoute(t *testing.T) {
	n := loopbackNet(t)
	local := &Route{In: Host, Link: "cni0", Dst: netip.MustParsePrefix("::1/128"), Priority: 4096, Local: true}
	spec := Spec{Objects: []Object{local}}
	differs := func(want int) {
		t.Helper()
		if d, err := n.Verify(t.Context(), spec, nil); err != nil || len(d) != want {
			t.Errorf("differences %v, %v, want %d", d, err, want)
		}
	}
	differs(1)
	plan, err := n.Plan(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(t.Context(), plan, nil); err != nil {
		t.Fatal(err)
	}
	differs(0)
	if got := nstest.Run(t, "ip", "-6", "route", "show", "table", "local", "::1", "dev", "cni0"); !strings.Contains(got, "metric 4096") {
		t.Errorf("route %q", got)
	}
	if _, err := n.Plan(t.Context(), spec, nil); !errors.Is(err, ErrExists) {
		t.Errorf("again: %v, want ErrExists", err)
	}
	if err := n.Undo(t.Context(), plan.Changes, nil); err != nil {
		t.Fatal(err)
	}
	differs(1)
	local.Table = 7
	if _, err := n.Plan(t.Context(), spec, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("with a table: %v, want ErrInvalid", err)
	}
}
