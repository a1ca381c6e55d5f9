package agent_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
)

// crowd is the number of additional nodes in TestEtcdSoak that come, change and go together.
const crowd = 300

// TestEtcdSoak: five nodes share one etcd. Agents are killed at any point, kernels are tampered
// with, hundreds of records change at once, and others are invalid. etcd is down for a while, a
// minute in a soak of five. At the end all pods reach each other, and each kernel has exactly the
// entries of etcd.
func TestEtcdSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	runtime.LockOSThread() // etcd ends with the thread that started it
	defer runtime.UnlockOSThread()
	soak, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &etcdSoak{w: newWorld(t, 5, vxlan), r: rand.New(rand.NewPCG(seed, 0)), server: etcdtest.Start(t)}
	s.put("/config", `{"Network":"10.0.0.0/8","SubnetMin":"10.1.0.0","SubnetMax":"10.1.255.0","Backend":{"Type":"vxlan"}}`)
	s.w.useEtcd(s.server.URL)
	pods := s.w.startAll("-ip-masq")
	s.w.reach(false, pods...)

	part := time.Duration(soak) * time.Second / 5
	s.disturb(part, true)
	s.settle()
	s.server.Kill()
	s.disturb(part, false)
	t.Logf("without etcd pods reach each other within %s", s.w.reach(false, pods...))
	for _, n := range s.w.nodes {
		s.restart(n)
	}
	s.w.reach(false, pods...)
	s.server.Up(t)
	s.disturb(part, true)
	s.settle()
	s.w.reach(false, pods...)
	t.Logf("%d kills, %d changes of %d nodes, %d garbage records", s.kills, s.changes, crowd, s.garbage)
}

type etcdSoak struct {
	w                       *world
	r                       *rand.Rand
	server                  *etcdtest.Server
	kills, changes, garbage int
	// present is the number of nodes of the crowd that exist.
	present int
}

// disturb makes random changes for a time, and each kind of change at least a few times. While etcd
// is down agents are not restarted: an agent without a snapshot can only keep the present state.
func (s *etcdSoak) disturb(length time.Duration, etcd bool) {
	for over, round := time.Now().Add(length), 0; round < 5 || time.Now().Before(over); round++ {
		n := s.w.nodes[s.r.IntN(len(s.w.nodes))]
		n.tamper(s.r)
		if !etcd {
			continue
		}
		if s.r.IntN(2) == 0 {
			s.restart(n)
		}
		s.change()
		s.harm()
	}
}

// restart kills a node's agent and starts it again.
func (s *etcdSoak) restart(n *node) {
	n.kill()
	n.launch("-ip-masq")
	s.kills++
}

// settle waits until the kernel of every node matches etcd.
func (s *etcdSoak) settle() {
	s.w.t.Helper()
	wanted := len(s.w.nodes) - 1 + s.present
	for _, n := range s.w.nodes {
		s.w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status: " + n.log.String() })
		n.until(fmt.Sprintf("%d peers", wanted), func(a answer) bool {
			return a.Ready && a.RegistryError == "" && a.Peers == store.OverlayPeers{Wanted: wanted, Programmed: wanted}
		})
		var have [3]int
		s.w.within(func() bool {
			routes, _ := n.try("ip", "-4", "route", "show", "proto", "142")
			neighbours, _ := n.try("ip", "neigh", "show", "dev", "flannel.1", "nud", "permanent")
			fdb, _ := n.try("bridge", "fdb", "show", "dev", "flannel.1")
			have = [3]int{strings.Count(routes, "\n"), strings.Count(neighbours, "\n"), strings.Count(fdb, "permanent")}
			return have == [3]int{wanted, wanted, wanted}
		}, func() string {
			return fmt.Sprintf("%s has %v routes, neighbours and FDB entries, not %d", n.name, have, wanted)
		})
	}
}

// change adds nodes of the crowd, with new devices, or removes some.
func (s *etcdSoak) change() {
	const atOnce = 100 // etcd accepts 128 operations in a transaction
	s.changes++
	s.present = 0
	for first := 0; first < crowd; first += atOnce {
		var ops []any
		for i := first; i < first+atOnce; i++ {
			key := b64(fmt.Sprintf("%s/subnets/10.%d.%d.0-24", flannelPrefix, 200+i/256, i%256))
			if s.r.IntN(4) == 0 {
				ops = append(ops, map[string]any{"request_delete_range": map[string]any{"key": key}})
				continue
			}
			s.present++
			ops = append(ops, map[string]any{"request_put": map[string]any{"key": key, "value": b64(fmt.Sprintf(
				`{"PublicIP":"172.18.%d.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:%02x:%02x:%02x"}}`, i>>8, i&255, s.r.IntN(3), i>>8, i&255))}})
		}
		etcdCall(s.w.t, s.server.URL, "/v3/kv/txn", map[string]any{"success": ops})
	}
}

// harm writes invalid records.
func (s *etcdSoak) harm() {
	s.garbage++
	name := fmt.Sprintf("10.210.%d.0-24", s.r.IntN(8))
	if s.r.IntN(4) == 0 {
		name = strings.Repeat("/", s.r.IntN(4)) + "\xff&"
	}
	s.put("/subnets/"+name, []string{
		"", "{", "[]", "\x00\xff", strings.Repeat(" ", 100<<10), `{"PublicIP":"127.0.0.1"}`, `{"PublicIP":"172.18.9.9","BackendType":"host-gw"}`,
		`{"PublicIP":"172.18.9.9","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}}`,
		`{"PublicIP":"172.18.9.9","BackendType":"vxlan","BackendData":{"VNI":9,"VtepMAC":"02:00:00:00:00:09"}}`,
	}[s.r.IntN(9)])
}

func (s *etcdSoak) put(key, value string) {
	s.w.t.Helper()
	etcdCall(s.w.t, s.server.URL, "/v3/kv/put", map[string]any{"key": b64(flannelPrefix + key), "value": b64(value)})
}
