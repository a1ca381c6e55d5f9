package agent_test

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// TestManyPeers: CNIBOX_PEERS nodes are programmed, and then one of them changes. The test logs the
// times.
func TestManyPeers(t *testing.T) {
	many := 500
	if s := os.Getenv("CNIBOX_PEERS"); s != "" {
		var err error
		many, err = strconv.Atoi(s)
		must(t, err)
	}
	w := newWorld(t, 1, `{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}`)
	n := w.nodes[0]
	far := func(i, mac int) cluster.Node {
		return cluster.Node{
			Name: fmt.Sprintf("x-%05d", i), PublicIP: netip.AddrFrom4([4]byte{172, 18, byte(i >> 8), byte(i)}), BackendType: "vxlan",
			PodCIDRs:    []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + byte(i>>8), byte(i), 0}), 24)},
			BackendData: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:%02x:%02x:%02x"}`, mac, i>>8, i&255),
		}
	}
	for i := range many {
		w.publish(far(i, 0))
	}
	begin := time.Now()
	n.start()
	n.until("all", func(a answer) bool { return a.Peers.Programmed == many })
	t.Logf("%d peers %s after the start of the process", many, time.Since(begin).Round(time.Millisecond))
	changed := far(many/2, 1)
	begin = time.Now()
	w.publish(changed)
	w.within(func() bool {
		return strings.Contains(n.ip("neigh show "+changed.PodCIDRs[0].Addr().String()+" dev flannel.1"), "02:00:00:01:")
	}, func() string { return "the change is not made" })
	t.Logf("one change %s after it was published", time.Since(begin).Round(time.Millisecond))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") || strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "RssAnon") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
