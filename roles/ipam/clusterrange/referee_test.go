package clusterrange

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/oneowner"
)

// referee writes down what ADDs and DELs did and when, and judges it at the end.
type referee struct {
	t *testing.T
	*oneowner.History
	mu sync.Mutex
	// used has the container of each address in use.
	used   map[netip.Addr]string
	total  int
	denied int
}

// given is called with the result of an ADD, and the time of its call.
func (r *referee) given(a netip.Addr, by string, call int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	r.used[a] = by
	r.Given(a, by, call)
}

// ended is called after a DEL with the time of its call.
func (r *referee) ended(a netip.Addr, by string, call int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used[a] == by { // else another ADD has been faster than this line
		delete(r.used, a)
	}
	r.Ended(a, by, call)
}

// computer is a node: a keeper in a process, and ADDs and DELs in this one.
type computer struct {
	r              *referee
	name, registry string
	// mu is held by each ADD and DEL for reading, and by a reinstallation for writing.
	mu     sync.RWMutex
	root   string
	keeper *exec.Cmd
}

func (c *computer) start() {
	c.r.t.Helper()
	c.keeper = exec.Command("/proc/self/exe")
	c.keeper.Env = append(os.Environ(), keeperEnv+"="+c.root, registryEnv+"="+c.registry, nameEnv+"="+c.name)
	if err := c.keeper.Start(); err != nil {
		c.r.t.Fatal(err)
	}
}

func (c *computer) kill() {
	_ = c.keeper.Process.Kill()
	_ = c.keeper.Wait()
}

// setClock sets the clocks of the node's agent and plugins wrong by up to two hours.
func (c *computer) setClock(rnd *rand.Rand) {
	c.r.t.Helper()
	c.mu.RLock()
	defer c.mu.RUnlock()
	wrong := time.Duration(rnd.Int64N(int64(4*time.Hour))) - 2*time.Hour
	if err := smallfile.Replace(filepath.Join(c.root, clockFile), []byte(wrong.String()), 0o600); err != nil {
		c.r.t.Error(err)
	}
}

// install gives the node empty directories, which is another machine.
func (c *computer) install() {
	c.r.t.Helper()
	c.root = c.r.t.TempDir()
	_ = hostAt(c.r.t, c.root)
}

// attach makes containers of a network and removes them, until the test ends.
func (c *computer) attach(network, ipam string, rnd *rand.Rand, end <-chan struct{}) {
	a := handlerFor(c.r.t, network, ipam)
	type pod struct {
		id   string
		addr netip.Addr
		root string
	}
	var pods []pod
	var h *roles.Host
	root := ""
	for i := 0; ; i++ {
		select {
		case <-end:
			return
		default:
		}
		c.mu.RLock()
		if root != c.root {
			root, h = c.root, newHost(c.root, os.Stderr)
		}
		if len(pods) > 0 && (len(pods) > 6 || rnd.IntN(2) == 0) {
			p := pods[0]
			pods = pods[1:]
			if p.root == c.root { // else the container ended with its machine
				call := c.r.Now()
				if err := a.Del(c.r.t.Context(), h, request(network, p.id)); err != nil {
					c.r.t.Error(err)
				}
				c.r.ended(p.addr, c.name+" "+p.id, call)
			}
			c.mu.RUnlock()
			continue
		}
		p := pod{id: fmt.Sprint(network, "-", i), root: c.root}
		call := c.r.Now()
		res, err := a.Add(c.r.t.Context(), h, request(network, p.id))
		switch {
		case c.r.t.Context().Err() != nil: // the test has failed
			c.mu.RUnlock()
			return
		case err == nil:
			p.addr = addressOf(c.r.t, res)
			c.r.given(p.addr, c.name+" "+p.id, call)
			pods = append(pods, p)
		case errors.Is(err, roles.ErrTryAgain), errors.Is(err, roles.ErrExhausted):
			c.r.mu.Lock()
			c.r.denied++
			c.r.mu.Unlock()
		default:
			c.r.t.Error(err)
		}
		c.mu.RUnlock()
	}
}

// reinstall switches the node off with all of its containers, removes its record, and starts an empty node.
func (c *computer) reinstall(forget func(name string)) {
	c.r.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kill()
	call := c.r.Now()
	err := c.leases(func(a netip.Addr) { c.r.ended(a, c.r.owner(a), call) })
	if err != nil {
		c.r.t.Error(err)
	}
	forget(c.name)
	c.install()
	c.start()
}

// leases calls fn with every address in use on the node.
func (c *computer) leases(fn func(netip.Addr)) error {
	return newHost(c.root, os.Stderr).Store.View(c.r.t.Context(), func(tx *store.Tx) error {
		ids, err := tx.Pools()
		for _, id := range ids {
			pool, err := tx.Pool(id)
			if err != nil {
				return err
			}
			for l, err := range pool.Leases() {
				if err != nil {
					return err
				}
				fn(l.Address)
			}
		}
		return err
	})
}

// TestReferee: nodes share overlapping ranges while their agents are killed, their clocks jump and nodes are reinstalled. No address
// is ever given to two containers at once. In a soak the registry etcd is killed, too. Where the pages are deleted no agent is killed:
// it would forget that.
func TestReferee(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	runtime.LockOSThread() // etcd ends with the thread that started it
	defer runtime.UnlockOSThread()
	soak, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	t.Run("dir", func(t *testing.T) {
		root := clusterDir(t)
		play(t, root, max(time.Duration(soak)*time.Second/2, 3*time.Second), func(name string) {
			if err := os.Remove(filepath.Join(root, "range-nodes", name+".json")); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}, nil, 7)
	})
	t.Run("deleted pages", func(t *testing.T) {
		root := clusterDir(t)
		play(t, root, max(time.Duration(soak)*time.Second/2, 3*time.Second), nil, func() {
			_ = os.RemoveAll(filepath.Join(root, "ranges")) // an agent may write meanwhile
		}, 0)
	})
	t.Run("etcd", func(t *testing.T) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		server := etcdtest.Start(t)
		play(t, server.URL, max(time.Duration(soak)*time.Second/2, 3*time.Second), nil, func() { server.Kill(); server.Up(t) }, 7)
	})
}

// play runs one game. forget removes a node's record, or is nil. disturb disturbs the registry, or is nil. Agents are killed so many times
// as often.
func play(t *testing.T, registry string, long time.Duration, forget func(string), disturb func(), killed int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := &referee{t: t, History: oneowner.New(), used: map[netip.Addr]string{}}
	end := make(chan struct{})
	var working sync.WaitGroup
	var all []*computer
	for i := range 4 {
		c := &computer{r: r, name: fmt.Sprint("node-", i), registry: registry}
		c.install()
		c.start()
		listens(t, newHost(c.root, io.Discard))
		all = append(all, c)
		for j, ipam := range []string{`"range": "10.9.0.0/26"`, `"range": "10.9.0.32/27"`, `"range": "10.9.0.0/16", "range_end": "10.9.0.50"`} {
			own := rand.New(rand.NewPCG(seed, uint64(10*i+j+1)))
			working.Go(func() { c.attach(fmt.Sprint("net", j), ipam, own, end) })
		}
	}
	kills, jumps, others := 0, 0, 0
	for until := time.Now().Add(long); time.Now().Before(until); {
		c := all[rnd.IntN(len(all))]
		switch n := rnd.IntN(3 + killed); {
		case n == 0 && forget != nil:
			c.reinstall(forget)
			others++
		case n < 2 && disturb != nil:
			disturb()
			others++
		case n == 2:
			c.setClock(rnd)
			jumps++
		default:
			c.kill()
			c.start()
			kills++
		}
		before := r.count()
		await.Until(t, func() bool { return r.count() > before+10 }, func() string { return "no ADD succeeds" })
	}
	close(end)
	working.Wait()
	for _, c := range all {
		c.kill()
	}
	t.Logf("%d addresses were given, %d ADDs were told to try again, %d kills of agents, %d jumps of clocks, %d other disturbances", r.count(), r.denied, kills, jumps, others)
	r.Judge(t)
	// What the nodes recorded is what the referee saw.
	recorded := map[netip.Addr]bool{}
	for _, c := range all {
		if err := c.leases(func(a netip.Addr) {
			if recorded[a] {
				t.Errorf("%s is leased on two nodes", a)
			}
			recorded[a] = true
		}); err != nil {
			t.Error(err)
		}
	}
	if len(recorded) != len(r.used) {
		t.Errorf("%d leases, %d addresses in use", len(recorded), len(r.used))
	}
	reg, err := openRegistry(registry, "referee")
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	if err := reg.Pages().List(t.Context(), func(string, []byte, string) { pages++ }); err != nil || pages != 1 {
		t.Errorf("%d pages, %v", pages, err)
	}
}

func (r *referee) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

func (r *referee) owner(a netip.Addr) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used[a]
}
