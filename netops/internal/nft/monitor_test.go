package nft

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// TestMonitorFlush: the deletion of a table is noticed if one transaction deletes other tables before
// and after it.
func TestMonitorFlush(t *testing.T) {
	nstest.Fresh(t)
	c := New(nil, nil)
	defer c.Close()
	const tables = 3
	var monitors []*Monitor
	for i := range tables {
		nstest.Run(t, "nft", "add", "table", "inet", fmt.Sprintf("table%d", i))
		m, err := OpenMonitor(c, func(Watched) {}, Watched{Table: Table{Family: unix.NFPROTO_INET, Name: fmt.Sprintf("table%d", i)}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		monitors = append(monitors, m)
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	for i, m := range monitors {
		await.Next(t, m.Changes(), fmt.Sprintf("the deletion of table%d", i))
	}
	nstest.Run(t, "nft", "add", "table", "inet", "other")
	nstest.Run(t, "nft", "add", "table", "inet", "table1")
	await.Next(t, monitors[1].Changes(), "the new table1")
	if len(monitors[0].Changes()) != 0 {
		t.Error("another table's change is reported")
	}
}
