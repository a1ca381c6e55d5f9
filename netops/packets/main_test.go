package packets_test

import (
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/netopstest"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// pair makes a veth pair: rawp on the host and eth0 in a new container, both up.
func pair(t *testing.T) (*netops.Net, *netops.Namespace, *netopstest.NS) {
	t.Helper()
	n, box := netops.New(netops.Options{}), netopstest.New(t)
	ns, err := n.OpenNamespace(box.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ns.Close()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	nstest.IP(t, "link add rawp type veth peer name eth0 netns "+box.Path())
	t.Cleanup(func() { nstest.IP(t, "link del rawp") })
	nstest.IP(t, "link set rawp up")
	inside(t, box, "ip", "link", "set", "eth0", "up")
	return n, ns, box
}

// inside runs a program in the network namespace ns.
func inside(t *testing.T, ns *netopstest.NS, args ...string) string {
	t.Helper()
	return nstest.Run(t, "nsenter", append([]string{"--net=" + ns.Path()}, args...)...)
}

func index(t *testing.T, n *netops.Net, ns *netops.Namespace, name string) int {
	t.Helper()
	l, err := n.Link(t.Context(), ns, name)
	if err != nil {
		t.Fatal(err)
	}
	return l.Index
}
