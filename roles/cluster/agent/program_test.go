package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// TestFailedRotation: a new WireGuard key that no device was given is not published. Here both families fail, because
// the node has no pod network.
func TestFailedRotation(t *testing.T) {
	n := netops.New(netops.Options{})
	defer n.Close() //nolint:errcheck // the test ends
	filter, err := overlay.OpenFilter(n)
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close() //nolint:errcheck // the test ends
	old := overlay.Secret{8}
	a := newAgent(&roles.Host{Net: n, Store: store.New(store.Options{}), Log: slog.New(slog.DiscardHandler)}, &settings{})
	a.devices[0].key, a.devices[1].key, a.key, a.filter = old, old, overlay.Secret{16}, filter
	a.config, a.own, a.snapshot = &cluster.Config{EnableIPv4: true, EnableIPv6: true}, &cluster.Node{}, &cluster.Snapshot{}
	a.underlay.link = "eth0"
	d, next := a.decide(a.routeLink), time.Hour
	a.adopt(t.Context(), &d)
	if faults := a.program(t.Context(), &d, &next); len(faults) != 2 {
		t.Fatal(faults)
	}
	defer a.closeFamilies()
	want, err := old.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, v6 := range []bool{false, true} {
		if got := a.publicKey(v6); got != want.String() {
			t.Errorf("%s: published %s, the device has %s", familyName(v6), got, want)
		}
	}
}
