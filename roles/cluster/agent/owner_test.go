package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTwoMachines: two machines have one node name. The one that published first keeps the record and its pods, and the other one is
// not ready and names both: a machine without state, a clone of the running one, and the original after its clone took the record.
func TestTwoMachines(t *testing.T) {
	w := newWorld(t, 3, vxlan)
	first, other := w.nodes[0], w.nodes[1]
	first.start()
	w.nodes[2].start()
	pods := []*pod{first.attach(), w.nodes[2].attach()}
	w.reach(false, pods...)
	subnet := first.status().PodCIDRs[0]
	other.name = first.name
	refused := func(what string, n *node) {
		t.Helper()
		w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status: " + n.log.String() })
		n.until(what, func(a answer) bool {
			return !a.Ready && n.exit != nil && strings.Contains(a.Reason, first.name) && strings.Contains(a.Reason, first.addr4.String()+" ") && strings.Contains(a.Reason, other.addr4.String()+" ")
		})
	}
	clone := func() {
		t.Helper()
		state, err := os.ReadFile(filepath.Join(first.StateDir(), "keep.db"))
		must(t, err)
		must(t, os.MkdirAll(other.StateDir(), 0o700))
		must(t, os.WriteFile(filepath.Join(other.StateDir(), "keep.db"), state, 0o600))
	}

	end := w.exchange(pods[0], pods[1], false, 20*time.Millisecond)
	other.launch()
	refused("a machine without state", other)
	if sent, answered := end(); sent != answered {
		t.Errorf("%d of %d datagrams of the first machine were lost", sent-answered, sent)
	}
	other.stop()

	first.suspend()
	clone()
	other.launch()
	w.within(func() bool { return w.record(first.name).PublicIP == other.addr4 }, func() string { return "the clone does not publish itself: " + other.log.String() })
	first.resume()
	refused("a clone", other)
	first.until("that it has its record again", func(a answer) bool { return a.Ready && a.Reason == "" && w.record(first.name).PublicIP == first.addr4 })
	w.reach(false, pods...)
	other.stop()

	first.stop()
	clone()
	other.start()
	if is := other.status().PodCIDRs[0]; is != subnet {
		t.Errorf("the clone has %s, the stopped original had %s", is, subnet)
	}
	first.launch()
	refused("the original", first)
	if a := other.status(); !a.Ready || w.record(first.name).PublicIP != other.addr4 {
		t.Errorf("the clone lost the record: %+v", a)
	}
}
