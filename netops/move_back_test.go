package netops

import (
	"context"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestAwaitEnds checks that a device that does not come back is not an error,
// also if the time is over when the last notification is handled.
func TestAwaitEnds(t *testing.T) {
	nstest.Fresh(t)
	n := New(Options{})
	defer n.Close() //nolint:errcheck // a test's
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := &Move{From: Host, To: Container, Name: "dev7", As: "eth0", Alias: "cnibox:0123456789abcdef", MAC: "02:00:00:00:00:07"}
	l, err := m.await(ctx, n.session(nil))
	if l != nil || err != nil {
		t.Errorf("%+v, %v", l, err)
	}
}
