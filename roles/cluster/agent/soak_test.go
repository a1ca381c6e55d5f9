package agent_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// TestSoak: nodes join, leave, change and break at random. Meanwhile the agent is killed at any
// point and the kernel is tampered with. At the end the kernel has the same objects that a new
// agent makes from the registry.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	seconds := 2
	if s := os.Getenv("CNIBOX_SOAK"); s != "" {
		var err error
		seconds, err = strconv.Atoi(s)
		must(t, err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 1, dual)
	n := w.nodes[0]
	n.start("-ip-masq")
	own := w.record(n.name)
	rounds, kills, end := 0, 0, time.Now().Add(time.Duration(seconds)*time.Second)
	for ; time.Now().Before(end); rounds++ {
		for range 1 + r.IntN(20) {
			w.disturb(r, own)
		}
		switch r.IntN(4) {
		case 0:
			<-time.After(time.Duration(r.IntN(30)) * time.Millisecond) // at any point of its work
			n.kill()
			kills++
			for range r.IntN(5) {
				w.disturb(r, own)
			}
			n.launch("-ip-masq")
		case 1:
			n.tamper(r)
		}
	}
	wanted, err := w.valid()
	must(t, err)
	programmed := func() {
		t.Helper()
		w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status: " + n.log.String() })
		n.until(fmt.Sprintf("%d programmed", wanted), func(a answer) bool { return a.Ready && a.Peers.Programmed == wanted && a.Peers.Wanted == wanted })
	}
	programmed()
	// The agent may not have received the last change yet. The next agent reads all.
	n.kill()
	n.launch("-ip-masq")
	programmed()
	have := n.picture()
	n.stop()
	_, err = n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile()})
	must(t, err)
	n.start("-ip-masq")
	n.until(fmt.Sprintf("%d programmed", wanted), func(a answer) bool { return a.Ready && a.Peers.Programmed == wanted })
	var want string
	w.within(func() bool { want = n.picture(); return want == have }, func() string {
		return fmt.Sprintf("after the soak there is\n%s\nand from nothing\n%s", have, want)
	})
	for range 5 {
		n.tamper(r)
	}
	var now string
	w.within(func() bool { now = n.picture(); return now == want }, func() string {
		return fmt.Sprintf("after it was tampered with there is\n%s\nand before\n%s", now, want)
	})
	t.Logf("%d rounds, %d kills, %d peers in the end", rounds, kills, wanted)
}

// disturb makes one of 60 nodes join, leave, change, or have an invalid record.
func (w *world) disturb(r *rand.Rand, own cluster.Node) {
	w.t.Helper()
	i := r.IntN(60)
	name := fmt.Sprintf("x-%02d", i)
	at := func(v6 bool) netip.Prefix {
		if v6 {
			return netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", 0x8000+i))
		}
		return netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", 180+i))
	}
	switch r.IntN(6) {
	case 0:
		_ = os.Remove(w.path(name))
	case 1:
		w.put(name, []byte(`{"name":"`))
		_ = os.Remove(w.path(name))
	default:
		w.publish(cluster.Node{
			Name: name, PublicIP: netip.MustParseAddr(fmt.Sprintf("172.17.8.%d", 150+r.IntN(50))), PublicIPv6: netip.MustParseAddr(fmt.Sprintf("2001:db8:8::%d", 150+i)),
			PodCIDRs: []netip.Prefix{at(false), at(true)}, BackendType: "vxlan",
			BackendData:   fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, r.IntN(3), i),
			BackendV6Data: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:06:00:00:%02x:%02x"}`, r.IntN(3), i),
		})
	}
}

// valid counts the peers of both families in the registry.
func (w *world) valid() (int, error) {
	entries, err := os.ReadDir(filepath.Dir(w.path("x")))
	count := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "x-") {
			count++
		}
	}
	return count, err
}

// tamper damages an object of the agent.
func (n *node) tamper(r *rand.Rand) {
	for range 1 + r.IntN(3) {
		command := []string{
			"ip link del flannel.1", "ip link set flannel-v6.1 down", "ip nexthop flush", "ip neigh flush dev flannel.1 nud permanent",
			"ip -6 route flush proto 142", "ip addr flush dev flannel.1", "nft flush ruleset", "ip link set flannel.1 address 02:99:99:99:99:99",
		}[r.IntN(8)]
		f := strings.Fields(command)
		_, _ = n.try(f[0], f[1:]...) // the object may not exist
	}
}
