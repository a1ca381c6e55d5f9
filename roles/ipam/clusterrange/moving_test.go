package clusterrange

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/oneowner"
)

// movers is what the referee knows about pods that keep their addresses.
type movers struct {
	*referee
	// nodes are those with a container of a pod.
	nodes          map[string][]string
	moved, refused int
	// pairs counts the ADDs on a second node.
	pairs int
}

// arrived is called with the result of an ADD of a pod.
func (m *movers) arrived(a netip.Addr, pod, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moved++
	if other, taken := m.used[a]; taken && other != pod {
		m.t.Errorf("%s was given to %s while %s had it", a, pod, other)
	}
	for other, of := range m.used {
		if of == pod && other != a {
			m.t.Errorf("%s has %s on %s while it has %s on %v", pod, a, node, other, m.nodes[pod])
		}
	}
	m.used[a], m.nodes[pod] = pod, append(m.nodes[pod], node)
	if n := len(m.nodes[pod]); n > 2 {
		m.t.Errorf("%s is on %v", pod, m.nodes[pod])
	} else if n == 2 {
		m.pairs++
	}
}

// left is called before a DEL of a pod.
func (m *movers) left(a netip.Addr, pod, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.nodes[pod], node)
	m.nodes[pod] = slices.Delete(m.nodes[pod], i, i+1)
	if len(m.nodes[pod]) == 0 {
		delete(m.used, a)
	}
}

func (m *movers) moves() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moved
}

// podRequest is a request for a pod's second interface.
func podRequest(tb testing.TB, network, pod, id string) *roles.Request {
	tb.Helper()
	req := request(network, id)
	var err error
	if req.Args, err = roles.ParseArgs("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod); err != nil {
		tb.Fatal(err)
	}
	return req
}

// move starts pods on a node and ends them, in random order, until the test ends.
func (m *movers) move(c *computer, pods int, rnd *rand.Rand, end <-chan struct{}) {
	a := handlerFor(m.t, "moving", `"range": "10.9.0.0/26", "sticky": {"ttl": 1}`)
	h := newHost(c.root, os.Stderr)
	has := map[string]netip.Addr{}
	for i := 0; ; i++ {
		select {
		case <-end:
			return
		default:
		}
		pod := fmt.Sprint("vm-", rnd.IntN(pods))
		addr, here := has[pod]
		id := c.name + "-" + pod
		if here {
			m.left(addr, pod, c.name)
			delete(has, pod)
			if err := a.Del(m.t.Context(), h, podRequest(m.t, "moving", pod, id)); err != nil {
				m.t.Error(err)
			}
			continue
		}
		res, err := a.Add(m.t.Context(), h, podRequest(m.t, "moving", pod, id))
		switch {
		case m.t.Context().Err() != nil: // the test has failed
			return
		case err == nil:
			has[pod] = addressOf(m.t, res)
			m.arrived(has[pod], pod, c.name)
		case errors.Is(err, roles.ErrTryAgain):
			m.mu.Lock()
			m.denied++
			if strings.Contains(err.Error(), "two at most may have it") {
				m.refused++
			}
			m.mu.Unlock()
		default:
			m.t.Error(err)
		}
	}
}

// TestMoves: an ADD reads from node.db whether to announce the addresses only if they can be on two nodes.
func TestMoves(t *testing.T) {
	for conf, want := range map[string]bool{
		`"ipam": {"range": "10.1.0.0/24"}`:                                                            false,
		`"ipam": {"range": "10.1.0.0/24", "sticky": {}}`:                                              true,
		`"ipam": {"range": "10.1.0.0/24"}, "args": {"cni": {"ipam-claim-reference": "vm"}}`:           true,
		`"ipam": {"range": "10.1.0.0/24"}, "args": {"cni": {"ipam-claim-reference": ""}}, "mtu": "x"`: false,
	} {
		r := Role()
		if got := r.Moves([]byte(`{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", ` + conf + `}`)); got != want {
			t.Errorf("%s: %v", conf, got)
		}
	}
}

// TestMoving: pods with reservations move between four nodes at random, and pods without come and go, while agents are
// killed and clocks jump. A pod is never on three nodes, has the same addresses on both, and no other pod has them.
func TestMoving(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	runtime.LockOSThread() // etcd ends with the thread that started it
	defer runtime.UnlockOSThread()
	soak, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	long := max(time.Duration(soak)*time.Second/2, 4*time.Second)
	t.Run("dir", func(t *testing.T) { playMoving(t, clusterDir(t), long, nil) })
	t.Run("etcd", func(t *testing.T) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		server := etcdtest.Start(t)
		playMoving(t, server.URL, long, func() { server.Kill(); server.Up(t) })
	})
}

func playMoving(t *testing.T, registry string, long time.Duration, disturb func()) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := &movers{referee: &referee{t: t, History: oneowner.New(), used: map[netip.Addr]string{}}, nodes: map[string][]string{}}
	end := make(chan struct{})
	var working sync.WaitGroup
	var all []*computer
	for i := range 4 {
		c := &computer{r: m.referee, name: fmt.Sprint("node-", i), registry: registry}
		c.install()
		c.start()
		all = append(all, c)
		mover, other := rand.New(rand.NewPCG(seed, uint64(i+1))), rand.New(rand.NewPCG(seed, uint64(i+11)))
		working.Go(func() { m.move(c, 6, mover, end) })
		working.Go(func() { c.attach("net", `"range": "10.9.0.0/26"`, other, end) })
	}
	disturbances := 0
	for until := time.Now().Add(long); time.Now().Before(until); disturbances++ {
		c := all[rnd.IntN(len(all))]
		switch n := rnd.IntN(10); {
		case n == 0 && disturb != nil:
			disturb()
		case n < 3:
			c.setClock(rnd)
		default:
			c.kill()
			c.start()
		}
		before := m.moves()
		await.Until(t, func() bool { return m.moves() > before+5 }, func() string { return "no ADD succeeds" })
	}
	close(end)
	working.Wait()
	for _, c := range all {
		c.kill()
	}
	t.Logf("%d pods started, %d while another node had the addresses, %d pods without a reservation, %d third nodes were refused, %d other ADDs were told to try again, %d disturbances", m.moved, m.pairs, m.total, m.refused, m.denied-m.refused, disturbances)
	if m.pairs == 0 || m.refused == 0 {
		t.Error("the test tested nothing")
	}
}

// TestReservedRefused: requests that no reservation can be for. Without an agent ADD is told to try again.
func TestReservedRefused(t *testing.T) {
	h := hostAt(t, t.TempDir())
	claim := `"args": {"cni": {"ipam-claim-reference": "vm.lan"}}, `
	for _, c := range []struct{ conf, sticky, args, want string }{
		{"", `"sticky": {}, `, "IP=10.1.0.5", "CNI_ARGS: IP: cannot be combined"},
		{claim, "", "K8S_POD_NAME=a", "CNI_ARGS: K8S_POD_NAMESPACE: is missing"},
		{claim, "", "K8S_POD_NAMESPACE=default", "the agent does not answer"},
		{"", `"sticky": {}, `, "", "the agent does not answer"},
	} {
		a, err := newHandler(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", %s"ipam": {%s"range": "10.1.0.0/24"}}`, c.conf, c.sticky))
		if err != nil {
			t.Fatal(err)
		}
		req := request("net", "c")
		if req.Args, err = roles.ParseArgs("IgnoreUnknown=1;" + c.args); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Add(t.Context(), h, req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, err := a.Preview(t.Context(), h, req); c.want == "the agent does not answer" && !errors.Is(err, roles.ErrUnplanned) {
			t.Errorf("%+v: preview: %v", c, err)
		}
	}
}
