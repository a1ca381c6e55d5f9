package dhcp_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// TestManyTimes: the daemon keeps no resources of released leases.
func TestManyTimes(t *testing.T) {
	wire := newWire(t)
	dnsmasq(t, wire.server, "10")
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	c := conf(e, `,"families":["ipv4","ipv6"]`)
	ns := join(t, bridge(t), "many0")
	round := func(id string) {
		for _, verb := range []string{"ADD", "DEL"} {
			one := direct(verb, ns, c)
			one.ID = id
			if a, err := rolestest.RunFor(e.Cmd(one), 0); err != nil || a.Code != 0 {
				t.Errorf("%s: %v: %s", verb, err, a.Stdout)
			}
		}
	}
	round("c")
	files := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		must(t, err)
		return len(list)
	}
	before := files()
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range 5 {
				round(fmt.Sprintf("c%d-%d", w, i))
			}
		})
	}
	workers.Wait()
	// Closing takes the kernel a moment.
	await.Until(t, func() bool { return files() <= before }, func() string { return fmt.Sprintf("%d open files, were %d", files(), before) })
	if n := recorded(t, e); n != 0 {
		t.Errorf("%d leases are on record", n)
	}
}
