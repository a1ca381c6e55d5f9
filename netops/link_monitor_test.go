package netops

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// TestLinkMonitorRoutes: the routes of a large cluster neither wake a LinkMonitor nor fill its receive buffer. A change of a link after them
// is the first notification.
func TestLinkMonitorRoutes(t *testing.T) {
	n := freshNet(t)
	nstest.Run(t, "ip", "link", "set", "lo", "up")
	m, err := n.OpenLinkMonitor()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.stop() // the test receives in its place
	m.ended.Wait()
	m.events.SetReceiveBuffer(1)
	var routes strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&routes, "route add 198.18.%d.%d dev lo\nroute del 198.18.%d.%d dev lo\n", i>>8, i&255, i>>8, i&255)
	}
	batch := exec.Command("ip", "-batch", "-")
	batch.Stdin = strings.NewReader(routes.String())
	if out, err := batch.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nstest.Run(t, "ip", "link", "set", "lo", "mtu", "65000")
	ctx, stop := context.WithDeadline(t.Context(), await.Deadline())
	defer stop()
	var kinds []uint16
	lost, err := m.events.Next(ctx, func(h unix.NlMsghdr, _ []byte) bool { kinds = append(kinds, h.Type); return false })
	if err != nil || lost || !slices.Equal(kinds, []uint16{unix.RTM_NEWLINK}) {
		t.Errorf("lost %v, messages %v, %v", lost, kinds, err)
	}
}
