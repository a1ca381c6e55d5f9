package dranet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/oneowner"
)

// game is a replay of DraNet's calls on some nodes.
type game struct {
	t       *testing.T
	history *oneowner.History
	// end is closed when the workers end. What they hold stays.
	end chan struct{}
	// given counts answers with addresses, lost those that nobody read, and repeated the answers to repeated calls.
	given, lost, repeated, attached atomic.Int64
	// claim makes a ResourceClaim and returns its UID. retire deletes it. With nil there are none, and each release is repeated until it
	// is answered, which DraNet does not do.
	claim  func(name string) string
	retire func(claim string)
	mu     sync.Mutex
	held   map[string]netip.Addr
	on     map[string]*computer
	// late has the devices of which a call was given up before its answer: it may be executed after a later release.
	late map[string]bool
}

func newGame(t *testing.T) *game {
	return &game{t: t, history: oneowner.New(), end: make(chan struct{}), held: map[string]netip.Addr{}, on: map[string]*computer{}, late: map[string]bool{}}
}

func (g *game) ended() bool {
	select {
	case <-g.end:
		return true
	default:
		return g.t.Context().Err() != nil
	}
}

// devices prepares claims of two devices and releases them, until the game ends. The kubelet repeats what was not answered.
func (g *game) devices(c *computer, worker int, rnd *rand.Rand) {
	var claims []string
	had := map[string]netip.Addr{}
	for i := 0; !g.ended(); i++ {
		if len(claims) > 0 && (len(claims) > 2 || rnd.IntN(2) == 0) {
			claim := claims[0]
			claims = claims[1:]
			for _, device := range []string{"eth1", "eth2"} {
				g.release(c, claim, device, had[claim+"/"+device], rnd)
			}
			if g.retire != nil {
				g.retire(claim)
			}
			continue
		}
		claim := fmt.Sprintf("%s-%d-%d", c.name, worker, i)
		if g.claim != nil {
			claim = g.claim(claim)
		}
		claims = append(claims, claim)
		for _, device := range []string{"eth1", "eth2"} {
			had[claim+"/"+device] = g.prepare(c, claim, device, rnd)
		}
	}
}

// prepare repeats a call until it is answered with an address, and then some more times.
func (g *game) prepare(c *computer, claim, device string, rnd *rand.Rand) (addr netip.Addr) {
	by, call := claim+"/"+device, g.history.Now()
	again := rnd.IntN(2)
	await.Until(g.t, func() bool {
		a, err := g.lossy(c, "GetProfileConfig", body(claim, device, config("lan")), rnd)
		if err != nil {
			g.mu.Lock()
			g.late[by] = true
			g.mu.Unlock()
		}
		switch {
		case err != nil || a.code == http.StatusInternalServerError: // killed, lost, or no address
			return false
		case a.code != http.StatusOK:
			g.t.Errorf("%s: %+v", by, a)
			return true
		}
		got := single(g.t, a)
		if !addr.IsValid() {
			addr = got
			g.history.Given(addr, by, call)
			g.given.Add(1)
			g.mu.Lock()
			g.held[by], g.on[by] = addr, c
			g.mu.Unlock()
		} else if got != addr {
			g.t.Errorf("%s has %s, and %s at a repeated call", by, addr, got)
		} else {
			g.repeated.Add(1)
		}
		again--
		return again < 0
	}, func() string { return by + " gets no address" + c.logged() })
	return addr
}

// release repeats a call until it is answered, unless the game retires claims. Then nobody repeats it.
func (g *game) release(c *computer, claim, device string, addr netip.Addr, rnd *rand.Rand) {
	by, call := claim+"/"+device, g.history.Now()
	g.mu.Lock()
	delete(g.held, by)
	g.mu.Unlock()
	await.Until(g.t, func() bool {
		a, err := g.lossy(c, "ReleaseProfileConfig", body(claim, device, config("lan", addr.String()+"/26")), rnd)
		return g.retire != nil || err == nil && a.code == http.StatusOK
	}, func() string { return by + " is not released" + c.logged() })
	g.history.Ended(addr, by, call)
}

// lossy makes a call. In a quarter of the cases the client closes the connection at a random time.
func (g *game) lossy(c *computer, method, body string, rnd *rand.Rand) (answer, error) {
	ctx := g.t.Context()
	if rnd.IntN(4) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.IntN(3000))*time.Microsecond)
		defer cancel()
	}
	a, err := c.call(ctx, method, body)
	if errors.Is(err, context.DeadlineExceeded) {
		g.lost.Add(1)
	}
	return a, err
}

// containers attaches containers to the same network, and collects as runtimes and operators do: nothing of this may free the
// address of a device.
func (g *game) containers(c *computer, rnd *rand.Rand) {
	type container struct {
		id   string
		addr netip.Addr
	}
	var all []container
	for i := 0; !g.ended(); i++ {
		switch n := rnd.IntN(8); {
		case n == 0: // the runtime's list has what it started
			valid := []map[string]string{}
			for _, o := range all {
				valid = append(valid, map[string]string{"containerID": o.id, "ifname": "net1"})
			}
			raw, _ := json.Marshal(valid)
			if _, err := c.plugin("GC", "", strings.Replace(lan, "{", fmt.Sprintf(`{"cni.dev/valid-attachments": %s, `, raw), 1)); err != nil {
				g.t.Errorf("GC: %v", err)
			}
		case n == 1:
			for _, args := range []string{"ipam gc", "state reap"} {
				if out, err := c.command(strings.Fields(args)...).CombinedOutput(); err != nil {
					g.t.Errorf("%s: %v: %s", args, err, out)
				}
			}
		case len(all) > 1:
			o := all[0]
			all = all[1:]
			call := g.history.Now()
			if out, err := c.plugin("DEL", o.id, lan); err != nil {
				g.t.Errorf("DEL: %v: %s", err, out)
			}
			g.history.Ended(o.addr, c.name+" "+o.id, call)
		default:
			o, call := container{id: fmt.Sprint("container-", i)}, g.history.Now()
			out, err := c.plugin("ADD", o.id, lan)
			if err != nil {
				if !strings.Contains(string(out), `"code": 11`) {
					g.t.Errorf("ADD: %v: %s", err, out)
				}
				continue
			}
			var res struct {
				IPs []struct{ Address netip.Prefix }
			}
			must(g.t, json.Unmarshal(out, &res))
			o.addr = res.IPs[0].Address.Addr()
			g.history.Given(o.addr, c.name+" "+o.id, call)
			g.attached.Add(1)
			all = append(all, o)
		}
	}
}

// play plays until a time has passed, while processes are killed.
func (g *game) play(nodes []*computer, long time.Duration) {
	seed := uint64(time.Now().UnixNano())
	g.t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var working sync.WaitGroup
	for i, c := range nodes {
		for j := range 3 {
			own := rand.New(rand.NewPCG(seed, uint64(10*i+j+1)))
			if j == 2 {
				working.Go(func() { g.containers(c, own) })
			} else {
				working.Go(func() { g.devices(c, j, own) })
			}
		}
	}
	kills := 0
	for until := time.Now().Add(long); time.Now().Before(until); kills++ {
		c := nodes[rnd.IntN(len(nodes))]
		if rnd.IntN(4) == 0 {
			c.kill(&c.agent)
			c.startAgent()
		} else {
			c.kill(&c.dranet)
			c.startProvider()
		}
		before := g.given.Load()
		await.Until(g.t, func() bool { return g.given.Load() > before+5 || g.t.Failed() }, func() string { return "no device gets an address" })
	}
	close(g.end)
	working.Wait()
	g.t.Logf("%d addresses were given to devices and %d to containers, %d calls were repeated, the client closed %d connections before the answer, %d kills", g.given.Load(), g.attached.Load(), g.repeated.Load(), g.lost.Load(), kills)
	g.history.Judge(g.t)
	if g.repeated.Load() == 0 || g.lost.Load() == 0 || g.attached.Load() == 0 {
		g.t.Error("the test tested nothing")
	}
}

func soak() time.Duration {
	n, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	return max(time.Duration(n)*time.Second/2, 4*time.Second)
}

// TestReplay: three nodes whose agents and providers are killed, and whose clients lose answers, share a range with containers. The
// same device of a claim always has the same address, no address has two owners, and in the end the nodes have leases for the devices
// that have addresses, and for no other one of which all calls were answered.
func TestReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	cluster := clusterDir(t)
	g := newGame(t)
	var nodes []*computer
	for i := range 3 {
		c := newComputer(t, cluster, fmt.Sprint("node-", i))
		c.start()
		nodes = append(nodes, c)
	}
	g.play(nodes, soak())
	g.compare(nodes)
}

// compare compares the nodes' leases with the devices that have addresses.
func (g *game) compare(nodes []*computer) {
	g.t.Helper()
	recorded := map[string]netip.Addr{}
	for _, c := range nodes {
		for by, a := range c.leases() {
			if recorded[by].IsValid() {
				g.t.Errorf("two nodes have addresses of %s", by)
			}
			recorded[by] = a
			if !g.held[by].IsValid() && !g.late[by] && g.retire == nil {
				g.t.Errorf("%s has a lease of %s and was released", by, a)
			}
		}
	}
	for by, a := range g.held {
		if recorded[by] != a {
			g.t.Errorf("%s has %s, and the record %s", by, a, recorded[by])
		}
	}
}
