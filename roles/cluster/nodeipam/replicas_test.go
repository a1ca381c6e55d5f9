//go:build kube

package nodeipam_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// referee follows the Nodes, and reports a block that two Nodes have at the same time.
type referee struct {
	t  *testing.T
	mu sync.Mutex
	// owners has the Node of each block, and nodes the blocks of each Node.
	owners map[string]string
	nodes  map[string][]string
	enough int
	all    chan struct{} // closed when enough Nodes have blocks
}

func (w *world) referee(enough int) *referee {
	w.t.Helper()
	r := &referee{t: w.t, owners: map[string]string{}, nodes: map[string][]string{}, enough: enough, all: make(chan struct{})}
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	if w.registry != nil {
		go func() { defer close(done); _ = objects.Follow(ctx, w.registry, nodesPath, r) }()
		w.t.Cleanup(func() { stop(); <-done })
		return r
	}
	c, err := rest.Open(rest.Kubeconfig(w.Kubeconfig(w.t, w.Address, kubetest.Admin)))
	w.must(err)
	go func() { defer close(done); _ = rest.Follow(ctx, c, nodesPath, r) }()
	w.t.Cleanup(func() { stop(); <-done; c.Close() })
	return r
}

func (r *referee) Put(o *rest.Node, _ bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := o.Metadata.Name
	if len(o.Spec.PodCIDRs) == 0 || len(r.nodes[name]) > 0 {
		return
	}
	r.nodes[name] = o.Spec.PodCIDRs
	for _, c := range o.Spec.PodCIDRs {
		if other := r.owners[c]; other != "" {
			r.t.Errorf("%s has %s, which %s has", name, c, other)
		}
		r.owners[c] = name
	}
	if len(r.nodes) == r.enough {
		close(r.all)
	}
}

func (r *referee) Remove(name string, _ bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.nodes[name] {
		delete(r.owners, c)
	}
	delete(r.nodes, name)
}

func (r *referee) Complete(map[string]bool) {}

// Failed is expected while the registry is stopped, or while a stopped process holds the directory's lock.
func (r *referee) Failed(err error) {
	if !errors.Is(err, cluster.ErrUnavailable) {
		r.t.Errorf("referee: %v", err)
	}
}
func (r *referee) Recovered() {}

// process is a replica as a process.
type process struct {
	*replica
	env  *rolestest.Env
	args []string
	cmd  *exec.Cmd
}

func (w *world) process(args ...string) *process {
	w.t.Helper()
	env := rolestest.NewEnv(w.t, table())
	p := &process{env: env, replica: &replica{w: w, socket: filepath.Join(env.RunDir(), "nodeipam.sock"), log: &logs{}}}
	p.args = append(args, w.flags...)
	if w.registry == nil {
		p.args = append(p.args, "-kubeconfig="+w.Kubeconfig(w.t, w.Address, w.token))
	}
	w.t.Cleanup(func() {
		p.kill()
		if w.t.Failed() {
			w.t.Logf("log of a process:\n%s", p.log)
		}
	})
	p.launch()
	return p
}

func (p *process) launch() {
	p.w.t.Helper()
	p.cmd = p.env.Cmd(rolestest.Call{Type: "nodeipam"})
	p.cmd.Args = append(p.cmd.Args, p.args...)
	p.cmd.Env = append(p.cmd.Env, "CNIBOX_LOG=info")
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		p.w.t.Fatal(err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// TestReplicas kills and stops the leader, and stops the registry until no process leads, while Nodes are made and
// deleted. Every Node gets a block, and never one that another Node has.
func TestReplicas(t *testing.T) {
	t.Run("kube", func(t *testing.T) { killReplicas(t, newWorld(t)) })
	for _, kind := range []string{"etcd", "dir"} {
		t.Run(kind, func(t *testing.T) { killReplicas(t, newRegistry(t, kind)) })
	}
}

func killReplicas(t *testing.T, w *world) {
	w.referee(-1)
	var all []*process
	for range 3 {
		all = append(all, w.process("-cluster-cidr=10.244.0.0/23", "-node-cidr-mask-size=32", "-leader-elect-lease-duration=2s", "-leader-elect-renew-deadline=1500ms", "-leader-elect-retry-period=100ms"))
	}
	ctx, stop := context.WithCancel(t.Context())
	var making sync.WaitGroup
	defer making.Wait()
	defer stop()
	var live []string
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	making.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			<-pace.C
			name := fmt.Sprintf("node-%d", i)
			if err := insist(func() error { return w.add(name, nil, nil) }); err != nil {
				t.Error(err)
				return
			}
			live = append(live, name)
			if len(live) < 200 {
				continue
			}
			at := rand.IntN(len(live))
			if err := insist(func() error { return w.delete(live[at]) }); err != nil {
				t.Error(err)
				return
			}
			live = slices.Delete(live, at, at+1)
		}
	})
	leads := func() *process {
		for _, p := range all {
			if s, err := p.status(); err == nil && s.Leader && s.Synced {
				return p
			}
		}
		return nil
	}
	rounds := 9
	for i := range rounds {
		var leader *process
		await.Until(t, func() bool { leader = leads(); return leader != nil }, func() string { return "no process leads" })
		stopped := false
		switch i % 3 {
		case 0:
			leader.kill()
		case 1:
			stopped = true
			_ = leader.cmd.Process.Signal(syscall.SIGSTOP)
		case 2:
			thaw := w.freeze()
			await.Until(t, func() bool { return leads() == nil }, func() string { return "a process leads without a registry" })
			thaw()
		}
		marker := fmt.Sprintf("round-%d", i)
		err := w.add(marker, nil, nil)
		if errors.Is(err, cluster.ErrUnavailable) && stopped {
			// The stopped process holds the directory's lock, and no process can write.
			_ = leader.cmd.Process.Signal(syscall.SIGCONT)
			err = w.add(marker, nil, nil)
		}
		w.must(err)
		w.assigned(marker)
		switch i % 3 {
		case 0:
			leader.launch()
		case 1:
			_ = leader.cmd.Process.Signal(syscall.SIGCONT)
		}
	}
	stop()
	making.Wait()
	w.assignedAll(len(live) + rounds)
	for _, p := range all {
		if text := p.log.String(); strings.Contains(text, "needs an operator") {
			t.Errorf("a replica reports an assignment of another one")
		}
	}
}

// insist repeats a creation or deletion that a stopped registry may execute after it had no answer.
func insist(do func() error) error {
	for again := false; ; again = true {
		err := do()
		if again && errors.Is(err, rest.ErrConflict) {
			return nil
		}
		if !errors.Is(err, cluster.ErrUnavailable) {
			return err
		}
	}
}

// TestManyNodes measures the time until all Nodes have blocks in the three registries, beside kube-controller-manager without its limit of requests. CNIBOX_NODES is the number of Nodes.
func TestManyNodes(t *testing.T) {
	count := 300
	if s := os.Getenv("CNIBOX_NODES"); s != "" {
		var err error
		if count, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	nodeipam := func(w *world) { w.process("-cluster-cidr=10.0.0.0/8") }
	manager := func(w *world) {
		w.StartManager(t, "--cluster-cidr=10.0.0.0/8", "--allocate-node-cidrs", "--controllers=node-ipam-controller", "--kube-api-qps=100000", "--kube-api-burst=100000")
	}
	kube := func(t *testing.T) *world { return newWorld(t) }
	for _, c := range []struct {
		name  string
		world func(*testing.T) *world
		start func(*world)
	}{
		{"kube-controller-manager", kube, manager},
		{"kube", kube, nodeipam},
		{"etcd", func(t *testing.T) *world { return newRegistry(t, "etcd") }, nodeipam},
		{"dir", func(t *testing.T) *world { return newRegistry(t, "dir") }, nodeipam},
	} {
		wait := func(t *testing.T, r *referee) {
			select {
			case <-r.all:
			case <-time.After(5 * await.Patience):
				t.Fatal("not all nodes have blocks")
			}
		}
		t.Run(c.name+", new nodes", func(t *testing.T) {
			w := c.world(t)
			w.create("first")
			c.start(w)
			w.assigned("first")
			r := w.referee(count + 1)
			begin := time.Now()
			w.createMany(count)
			made := time.Now()
			wait(t, r)
			t.Logf("%d nodes: made in %v, all have blocks after %v, %v after the last was made", count, made.Sub(begin), time.Since(begin), time.Since(made))
		})
		t.Run(c.name+", existing nodes", func(t *testing.T) {
			w := c.world(t)
			w.createMany(count)
			r := w.referee(count)
			begin := time.Now()
			c.start(w)
			wait(t, r)
			t.Logf("%d nodes: all have blocks %v after the start", count, time.Since(begin))
		})
	}
}

// createMany makes Nodes, several at a time.
func (w *world) createMany(count int) {
	w.t.Helper()
	var c rest.Objects = w.registry
	if w.registry == nil {
		api, err := rest.Open(rest.Kubeconfig(w.Kubeconfig(w.t, w.Address, kubetest.Admin)))
		w.must(err)
		defer api.Close()
		c = api
	}
	numbers := make(chan int)
	var making sync.WaitGroup
	for range 4 {
		making.Go(func() {
			for i := range numbers {
				if err := c.Create(w.t.Context(), nodesPath, map[string]any{"metadata": map[string]any{"name": fmt.Sprintf("node-%d", i)}}, nil); err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	for i := range count {
		numbers <- i
	}
	close(numbers)
	making.Wait()
}
