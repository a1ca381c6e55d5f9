package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/test/sim"
)

// simGrace is how long a node stays that the registry has lost.
const simGrace = 24 * time.Hour

var errSim = errors.New("simulated")

// simWorld is a registry, its Watch in one agent, and the peers that this agent has in the kernel. It plays in a bubble of
// synctest. The Watch uses the table as that of etcd does, but reads changes from memory.
type simWorld struct {
	t       *testing.T
	dir     string
	config  *cluster.Config
	records map[string]*simRecord
	// changed has the names whose records were changed, in order. "" is the configuration, which may be gone.
	changed []string
	gone    bool
	// losses counts the times at which the registry lost records. last is an older state of it.
	losses int
	older  map[string]simRecord
	// size is the number of nodes at the start, and address the last used address.
	size, address int

	// The state of the Watch. at is the number of known changes.
	table  *cluster.Table
	at     int
	knows  int
	listed bool
	lost   bool
	grace  time.Time

	a      *agent
	stop   func()
	kernel map[netip.Prefix]overlay.Peer
	// asked is true while the agent waits for the publication of its record.
	asked bool
}

// simRecord is a node. present is false after the registry has lost its record, and since is the time of the loss.
type simRecord struct {
	node    cluster.Node
	invalid bool
	present bool
	since   time.Time
	// version is the number of changes after which the record was as it is and no other node had its network.
	version   int
	contested bool
	// healthy is true since the agent had this record in the kernel, while it must stay there.
	healthy bool
}

func simName(i int) string { return fmt.Sprintf("node-%04d", i) }

func simSubnet(i int) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}
}

// simOwn is this node. Nobody else claims its network, which is the first.
const simOwn = "node-0000"

func newSimWorld(t *testing.T, n int) *simWorld {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sim")
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := cluster.ParseConfig([]byte(`{"Network": "10.0.0.0/8", "Backend": {"Type": "host-gw"}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := &simWorld{t: t, dir: dir, config: c, records: map[string]*simRecord{}, size: n, address: n, kernel: map[netip.Prefix]overlay.Peer{}}
	for i := range n {
		w.put(simName(i), i, i)
	}
	w.backUp()
	w.start()
	return w
}

// start starts the agent. What it knows comes from the registry or from keep.db.
func (w *simWorld) start() {
	s := store.New(store.Options{RunDir: w.dir, StateDir: w.dir, BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute})
	w.a = newAgent(&roles.Host{Now: time.Now, Store: s, Log: slog.New(slog.DiscardHandler)}, &settings{})
	w.a.registry = &registryClient{name: "sim", node: simOwn}
	w.a.self = w.a.registry.identity()
	w.a.links = []netops.HostLink{{
		Name: "eth0", Index: 2, MTU: 1500, Up: true, OperUp: true, Default4: true,
		Addresses: []netops.HostAddr{{Prefix: netip.MustParsePrefix("172.16.0.1/12")}},
	}}
	w.table, w.listed, w.lost, w.knows, w.asked = &cluster.Table{}, false, false, w.losses, false
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.a.recaller.run(ctx) }()
	w.stop = func() { cancel(); <-done }
}

func (w *simWorld) Close() {
	w.stop()
	_ = os.RemoveAll(w.dir)
}

// put writes a record with the i-th address and the j-th network.
func (w *simWorld) put(name string, i, j int) {
	w.write(name, &simRecord{present: true, node: cluster.Node{
		Name: name, PublicIP: netip.AddrFrom4([4]byte{172, 16, byte((i + 1) >> 8), byte(i + 1)}), BackendType: backendHostGW, PodCIDRs: simSubnet(j),
	}})
}

// write replaces or removes a record. A record that is damaged or repaired, or written again after a loss, cuts nothing.
func (w *simWorld) write(name string, r *simRecord) {
	w.changed = append(w.changed, name)
	if before := w.records[name]; r != nil && before != nil && before.node.Same(&r.node) {
		r.healthy = before.healthy
	}
	if w.records[name] = r; r == nil {
		delete(w.records, name)
	} else {
		r.version = len(w.changed)
	}
	w.contest()
}

// contest finds the nodes whose network or address another one has: all nodes use the first by name of those that the
// registry has.
func (w *simWorld) contest() {
	owners := map[netip.Prefix]string{}
	for name, r := range w.records {
		if p := r.node.PodCIDRs[0]; r.present && (owners[p] == "" || name < owners[p]) {
			owners[p] = name
		}
	}
	addresses := map[netip.Addr]bool{}
	for _, r := range w.records {
		addresses[r.node.PublicIP] = addresses[r.node.PublicIP] || r.present
	}
	for name, r := range w.records {
		owner := owners[r.node.PodCIDRs[0]]
		contested := owner != "" && owner != name || !r.present && addresses[r.node.PublicIP]
		r.healthy = r.healthy && !contested
		if r.contested && !contested {
			r.version = len(w.changed)
		}
		r.contested = contested
	}
}

// backUp makes a copy of the registry, to which it may be restored.
func (w *simWorld) backUp() {
	w.older = map[string]simRecord{}
	for name, r := range w.records {
		if r.present {
			w.older[name] = *r
		}
	}
}

// lose makes the registry lose all records, or those after the copy.
func (w *simWorld) lose(restored bool) {
	w.losses++
	w.gone = !restored
	for name, r := range w.records {
		old, kept := w.older[name]
		switch kept = kept && restored; {
		case kept && r.present && r.invalid == old.invalid && r.node.Same(&old.node):
		case kept:
			w.write(name, &simRecord{present: true, invalid: old.invalid, node: old.node})
		case r.invalid: // its lost record says nothing
			w.write(name, nil)
		case r.present:
			// A node whose record was just repaired may not be known.
			r.present, r.since, r.healthy = false, time.Now(), r.healthy && w.at >= r.version
		}
	}
	w.contest()
}

// watch lets the Watch learn up to n changes.
func (w *simWorld) watch(n int) string {
	if w.knows != w.losses {
		w.listed, w.lost, w.knows = false, true, w.losses
	}
	if !w.listed {
		return w.list()
	}
	for ; n > 0 && w.at < len(w.changed); n-- {
		name := w.changed[w.at]
		w.at++
		if name == "" {
			w.listed = false
			return "the configuration is written"
		}
		r := w.records[name]
		if r != nil && r.present {
			w.read(name, r)
		} else if r == nil {
			w.table.Remove(name)
		}
		w.a.updates.Put(w.table.Snapshot)
	}
	if w.at == len(w.changed) {
		w.forget()
	}
	return fmt.Sprintf("the watch knows %d of %d changes", w.at, len(w.changed))
}

// forget removes lost nodes after the grace time, when all changes are known.
func (w *simWorld) forget() {
	if !time.Now().Before(w.grace) && w.table.Forget() {
		w.a.updates.Put(w.table.Snapshot)
	}
}

func (w *simWorld) read(name string, r *simRecord) {
	var err error
	if r.invalid {
		err = errSim
	}
	w.table.Put(name, r.node, err)
}

// list reads everything, as in store/cluster/etcd.
func (w *simWorld) list() string {
	if w.gone && w.table.Config() == nil {
		w.a.updates.Fail(errSim)
		return "there is no configuration"
	}
	first := w.table.Config() == nil
	if !w.gone {
		w.table.SetConfig(w.config)
	}
	present := map[string]bool{}
	for name, r := range w.records {
		// A restarted agent keeps no node that the registry has lost, or whose record cannot be read.
		r.healthy = r.healthy && (!first || r.present && !r.invalid)
		if r.present {
			present[name] = true
			w.read(name, r)
		}
	}
	if w.gone {
		w.table.Put("/config", cluster.Node{}, errSim)
		w.lost = true
	} else {
		if w.lost {
			w.grace = time.Now().Add(simGrace)
			w.table.Lose(present, simOwn)
		}
		w.forget()
		w.table.Keep(present)
		w.lost = false
	}
	w.at, w.listed = len(w.changed), true
	w.a.updates.Put(w.table.Snapshot)
	return fmt.Sprintf("everything is read: %d records, configuration %t", len(present), !w.gone)
}

// reconcile is the agent's, with a map for the kernel.
func (w *simWorld) reconcile() error {
	ctx, a := context.Background(), w.a
	a.applyUpdate(a.updates.Take())
	a.recall(ctx)
	d := a.decide(nil)
	a.adopt(ctx, &d)
	w.asked = w.asked || d.publish != nil
	if own := w.records[simOwn]; w.asked && own.present { // until then the publisher tries again
		w.asked = false
		a.setOwn(ctx, acquisition{node: own.node})
		d = a.decide(nil)
		a.adopt(ctx, &d)
	}
	if !d.programs {
		return nil
	}
	spec := d.families[0].spec
	if err := d.families[0].err; err != nil {
		return err
	}
	if spec.Prune {
		clear(w.kernel)
	}
	for _, p := range spec.Peers {
		w.kernel[p.Subnet] = p
	}
	a.remember()
	return nil
}

func (w *simWorld) has(r *simRecord) bool {
	p, ok := w.kernel[r.node.PodCIDRs[0]]
	return ok && p.Name == r.node.Name && p.Gateway == r.node.PublicIP
}

// Check checks that the peers that must stay are in the kernel, and those that the agent must know.
func (w *simWorld) Check() error {
	if err := w.reconcile(); err != nil {
		return err
	}
	knows := w.listed && w.knows == w.losses && w.a.own != nil && !w.a.fromMemory
	current := knows && w.at == len(w.changed) && !w.gone
	for _, r := range w.records {
		current = current && !r.invalid // its last valid record may have the network of another one
	}
	for name, r := range w.records {
		if name == simOwn {
			continue
		}
		has := w.has(r)
		if !r.present && time.Since(r.since) >= simGrace {
			r.healthy = false
		}
		if r.healthy && !has {
			return fmt.Errorf("the flow to %s is cut: %+v", name, w.kernel[r.node.PodCIDRs[0]])
		}
		if current && r.present && !r.contested && !has {
			return fmt.Errorf("the agent knows %s and has no route to it: %+v", name, w.kernel[r.node.PodCIDRs[0]])
		}
		r.healthy = r.healthy || has && r.present && !r.invalid && !r.contested && w.at >= r.version && knows
	}
	return nil
}

// change changes a node's record.
func (w *simWorld) change(r *rand.Rand) string {
	i := 1 + r.IntN(w.size)
	name, is := simName(i), w.records[simName(i)]
	w.address++
	free := w.size + r.IntN(w.size)
	switch k := r.IntN(10); {
	case is == nil:
		w.put(name, w.address, []int{i, free}[r.IntN(2)])
		return name + " is new"
	case !is.present || is.invalid:
		w.write(name, &simRecord{present: true, node: is.node})
		return name + " publishes itself again"
	case k < 2:
		w.write(name, nil)
		return name + " is removed"
	case k < 4:
		next := *is
		next.node.PublicIP, next.healthy = netip.AddrFrom4([4]byte{172, 17, byte(w.address >> 8), byte(w.address)}), false
		w.write(name, &next)
		return name + " has another address"
	case k < 8:
		next := *is
		next.node.PodCIDRs, next.healthy = simSubnet([]int{free, 1 + r.IntN(w.size)}[r.IntN(2)]), false
		w.write(name, &next)
		return fmt.Sprint(name, " has network ", next.node.PodCIDRs)
	}
	w.write(name, &simRecord{present: true, invalid: true, node: is.node})
	return name + " has an invalid record"
}

// publish lets nodes that the registry has lost publish themselves again.
func (w *simWorld) publish(r *rand.Rand) string {
	for i := range w.size + 1 {
		if is := w.records[simName(i)]; is != nil && !is.present && (i == 0 || r.IntN(2) == 0) {
			w.write(is.node.Name, &simRecord{present: true, node: is.node})
		}
	}
	return "lost nodes publish themselves again"
}

func (w *simWorld) Do(r *rand.Rand) string {
	switch k := r.IntN(100); {
	case k < 25:
		return w.watch(1 + r.IntN(5))
	case k < 30:
		w.a.updates.Fail(errSim)
		return "the watch fails"
	case k < 37:
		w.listed = false
		return w.watch(0)
	case k < 62:
		return w.change(r)
	case k < 65:
		restored := r.IntN(2) == 0
		w.lose(restored)
		return fmt.Sprint("the registry loses its records; restored: ", restored)
	case k < 72 && w.gone:
		w.configure()
		return "the configuration is back"
	case k < 76:
		return w.publish(r)
	case k < 79:
		w.backUp()
		return "a copy is made"
	case k < 88:
		saved := r.IntN(2) == 0
		w.restart(saved)
		return fmt.Sprint("the agent is killed and starts; saved: ", saved)
	}
	d := []time.Duration{time.Millisecond, 6 * time.Second, time.Hour, 13 * time.Hour}[r.IntN(4)]
	time.Sleep(d)
	return fmt.Sprint(d, " pass")
}

func (w *simWorld) configure() {
	w.gone = false
	w.changed = append(w.changed, "")
}

// restart kills the agent. The next one knows the nodes of keep.db until it reads the registry. If the last ones were not
// saved, these may be former addresses and networks.
func (w *simWorld) restart(saved bool) {
	if saved {
		time.Sleep(10 * time.Second)
	}
	synctest.Wait()
	w.stop()
	w.start()
	former := map[netip.Prefix][]*cluster.Node{}
	for _, n := range w.a.recaller.load(context.Background(), w.a.registry).Nodes {
		former[n.PodCIDRs[0]] = append(former[n.PodCIDRs[0]], n)
	}
	for _, r := range w.records {
		other := func(n *cluster.Node) bool { return !n.Same(&r.node) }
		r.healthy = r.healthy && (saved || !slices.ContainsFunc(former[r.node.PodCIDRs[0]], other))
	}
}

// End repairs the registry. The agent then has exactly its nodes.
func (w *simWorld) End() error {
	w.configure()
	for _, r := range w.records {
		if r.invalid {
			w.write(r.node.Name, &simRecord{present: true, node: r.node})
		}
	}
	w.publish(rand.New(rand.NewPCG(1, 2)))
	for w.watch(len(w.changed)); !w.listed || w.at < len(w.changed); {
		w.watch(len(w.changed))
	}
	for range 2 {
		if err := w.Check(); err != nil {
			return err
		}
		time.Sleep(simGrace)
		w.watch(0)
	}
	want := 0
	for _, r := range w.records {
		if r.present && !r.contested && r.node.Name != simOwn {
			want++
		}
	}
	if len(w.kernel) != want {
		return fmt.Errorf("the registry has %d other nodes, and the kernel %d", want, len(w.kernel))
	}
	return nil
}

// TestSim plays histories of a registry. The agent cuts no flow to a node whose record stays, or is lost for less than a
// day, and in the end it has the nodes of the registry.
func TestSim(t *testing.T) {
	p := sim.Plan{
		New:   func(n int, _ *rand.Rand) sim.World { return newSimWorld(t, n) },
		Steps: func(n int) int { return 150 + min(n, 100) },
		Play:  func(play func()) { synctest.Test(t, func(*testing.T) { play() }) },
	}
	p.Run(t, 40)
}
