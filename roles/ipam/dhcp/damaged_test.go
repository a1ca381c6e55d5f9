package dhcp_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestDamagedRecords: if keep.db cannot be read, a container can still be deleted. A daemon that has
// the lease in memory releases it.
func TestDamagedRecords(t *testing.T) {
	for name, killed := range map[string]bool{"with the daemon": false, "without the daemon": true} {
		t.Run(name, func(t *testing.T) {
			wire := newWire(t)
			server := isc(t, wire.server, "-4", isc4With(``))
			e := rolestest.NewEnv(t, all.Table())
			d := daemon(t, e)
			ns := netopstest.New(t)
			c := conf(e, "")
			start := e.State([]string{"br0"}, ns)
			for _, end := range []rolestest.Call{call("DEL", ns, c), gc(ns, c)} {
				e.OK(call("ADD", ns, c))
				whole, err := os.ReadFile(filepath.Join(e.StateDir(), "keep.db"))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(e.StateDir(), "keep.db"), bytes.Repeat([]byte("damaged "), 1024), 0o600))
				if killed {
					d.kill()
				}
				if killed && end.Verb == "GC" {
					e.Fail(end, 113) // it does not know the lease to release
					end = call("DEL", ns, c)
				}
				if a := e.OK(end); killed && !strings.Contains(a.Stderr, "the record of a lease is lost") {
					t.Errorf("%s said: %s", end.Verb, a.Stderr)
				}
				if s := e.State([]string{"br0"}, ns); s != start {
					t.Errorf("after %s:\n%s\nwas:\n%s", end.Verb, s, start)
				}
				must(t, os.WriteFile(filepath.Join(e.StateDir(), "keep.db"), whole, 0o600))
				if killed {
					d = daemon(t, e)
				}
			}
			if !killed {
				d.await(t, "the record of a lease is lost", 2)
				server.await(t, "DHCPRELEASE of 10.9.0.10", 2)
			}
			e.OK(call("DEL", ns, c))
		})
	}
}
