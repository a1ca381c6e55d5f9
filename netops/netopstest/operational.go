package netopstest

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// CheckOperational checks that all links of the host but lo are in operation. A list shows
// the state as it is; a request for one link would bring it into operation, since Linux 6.8.
func CheckOperational(t testing.TB, what string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, l := range links {
		if a := l.Attrs(); a.Name != "lo" && a.OperState != netlink.OperUp {
			t.Errorf("%s: link %q is %s", what, a.Name, a.OperState)
		}
	}
}
