package leftovers

import (
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/netopstest"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// freshNet returns a Net in a new namespace.
func freshNet(t *testing.T) *netops.Net {
	t.Helper()
	nstest.Fresh(t)
	n := netops.New(netops.Options{IPTables: nstest.IPTables})
	t.Cleanup(func() { _ = n.Close() })
	return n
}
