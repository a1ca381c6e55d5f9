package clusterrange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/sim"
)

// simWorld is a cluster whose nodes share overlapping ranges.
type simWorld struct {
	t     *testing.T
	root  string
	reg   *simRegistry
	nodes []*simNode
	// now is the true time.
	now      time.Duration
	networks []*handler
	// weights are the sums of the weights of the actions up to each one. One of faults requests fails, or none.
	weights []int
	faults  int
	err     error
}

// simNode is a node with an agent and containers.
type simNode struct {
	w             *simWorld
	name, machine string
	boots         int
	host          *roles.Host
	keeper        *ranges.Keeper
	// rate and set make the clocks wrong. booted is the true time of the boot. While a virtual machine is suspended nothing runs on
	// it, and the clock of its boot stands still.
	rate              float64
	set               time.Duration
	booted, suspended time.Duration
	virtual           bool
	// cut means that the registry cannot be reached, away that this lasts.
	cut, away bool
	task      *sim.Task
	// began is when the agent's pass began.
	began time.Duration
	// at is the request that the task waits for, and fate and slow what happens to it.
	at   string
	fate fate
	slow bool
	// failed is the error of the last pass.
	failed error
	// wanted are the networks whose ADDs wait.
	wanted     map[string]bool
	containers []simContainer
	made       int
	// blocks are those in node.db, unless stale is true.
	blocks []store.RangeBlock
	stale  bool
}

type simContainer struct {
	network, id string
	addr        netip.Addr
	// lost means that the container's block was taken, after the node had no record for long.
	lost bool
}

const (
	simDrift = 0.05
	simGrace = 30 * time.Minute // see roles/cluster/ranges
)

func newSimWorld(t *testing.T, n int, r *rand.Rand) *simWorld {
	t.Helper()
	tmp := "/dev/shm"
	if _, err := os.Stat(tmp); err != nil {
		tmp = ""
	}
	root, err := os.MkdirTemp(tmp, "cnibox-sim")
	if err != nil {
		t.Fatal(err)
	}
	w := &simWorld{t: t, root: root, now: time.Hour, faults: []int{0, 6, 20}[r.IntN(3)]}
	sum := 0
	for _, a := range simActions {
		sum += a.weight * []int{0, 1, 1, 2, 4, 8}[r.IntN(6)]
		w.weights = append(w.weights, sum)
	}
	w.reg = &simRegistry{w: w, pages: map[string]*simPage{}, joined: map[string]bool{}, changed: map[string]time.Duration{}}
	all := [][]string{
		{"10.9.0.0/28", "10.9.0.0/29", "10.9.0.8/29"},
		{"10.9.0.0/25", "10.9.0.64/26", "10.9.0.0/26"},
		{"10.9.0.0/27", "10.9.0.16/28", "10.9.0.8/29"},
		{"10.9.0.252-10.9.1.4/22", "10.9.1.1-10.9.1.8/22", "10.9.0.253-10.9.2.2/22"}, // of several pages
	}[r.IntN(4)]
	if n > 5 && r.IntN(3) == 0 {
		all = []string{"10.9.0.0/23", "10.9.0.128/25", "10.9.0.240/27"}
	}
	if n > 100 {
		all = []string{"10.9.0.0/20", "10.9.8.0/21", "10.9.8.0/24"}
	}
	for i, of := range all[:1+r.IntN(3)] {
		w.networks = append(w.networks, handlerFor(t, fmt.Sprint("net", i), fmt.Sprintf(`"range": %q`, of)))
	}
	for i := range n {
		node := &simNode{w: w, name: fmt.Sprint("node-", i), rate: 1 + simDrift*(2*r.Float64()-1), virtual: r.IntN(2) == 0}
		w.nodes = append(w.nodes, node)
		node.install()
	}
	return w
}

// clock returns the time of the node's own clock since its boot.
func (n *simNode) clock() time.Duration {
	now := n.w.now
	if n.suspended > 0 {
		now = n.suspended
	}
	return time.Duration(float64(now-n.booted) * n.rate)
}

// install makes the node another machine.
func (n *simNode) install() {
	n.machine = fmt.Sprint(n.name, "-machine-", n.boots)
	n.boot()
}

// boot starts the node without containers.
func (n *simNode) boot() {
	n.close()
	n.boots++
	n.booted, n.containers, n.blocks, n.wanted, n.stale = n.w.now, nil, nil, map[string]bool{}, true
	dir := filepath.Join(n.w.root, fmt.Sprint(n.name, "-", n.boots))
	for _, d := range []string{dir, filepath.Join(dir, "run"), filepath.Join(dir, "state")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			n.w.t.Fatal(err)
		}
	}
	log := io.Discard
	if os.Getenv("SEED") != "" {
		log = n.w.t.Output()
	}
	n.host = &roles.Host{
		Role: "range", Log: slog.New(slog.NewTextHandler(log, nil)).With("of", n.name), SinceBoot: n.clock,
		Now: func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(n.w.now + n.set) },
		Store: store.New(store.Options{
			RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute, Role: "range",
			Probe: func(op string) error {
				n.stale = n.stale || op == "committed"
				return nil
			},
		}),
	}
	n.start()
}

// stop kills the agent.
func (n *simNode) stop() {
	if n.task != nil {
		n.task.Kill()
	}
	n.task = nil
}

// close kills the agent and closes node.db, which a failed transaction does.
func (n *simNode) close() {
	n.stop()
	if n.host != nil {
		_ = n.host.Store.View(context.Background(), func(*store.Tx) error { return io.EOF })
	}
}

// start starts the agent.
func (n *simNode) start() {
	n.stop()
	n.keeper = ranges.NewKeeper(ranges.Options{Host: n.host, Registry: simClient{n.w.reg, n}, Node: n.name, Machine: n.machine})
}

// pass lets the agent make a pass up to its first request.
func (n *simNode) pass() {
	wanted := n.wanted
	n.wanted, n.began = map[string]bool{}, n.w.now
	n.task = sim.Go(func(t *sim.Task) {
		n.task = t
		n.failed = n.keeper.Pass(context.Background(), wanted)
	})
	n.settle()
}

// settle reads what the agent may have changed.
func (n *simNode) settle() {
	if n.task != nil && n.task.Done {
		n.task = nil
	}
	if n.stale {
		var err error
		n.blocks, err = store.Read(context.Background(), n.host.Store, (*store.Tx).RangeBlocks)
		if err != nil {
			n.w.broken("%s: %v", n.name, err)
		}
		n.stale = false
	}
	for i := range n.blocks {
		n.checkBlock(&n.blocks[i])
	}
}

// checkBlock checks that the registry has a block from which ADD would give addresses.
func (n *simNode) checkBlock(b *store.RangeBlock) {
	if !b.Valid(n.host.Now(), n.host.SinceBoot()) {
		return
	}
	for a := b.First; a.Compare(b.Last) <= 0; {
		o := n.w.reg.owner(a)
		if !n.has(o) {
			n.w.broken("%s gives addresses of %s-%s, which the registry has not for it", n.name, b.First, b.Last)
			return
		}
		a = o.Last.Next()
	}
}

// has reports whether a block is this machine's.
func (n *simNode) has(b *simBlock) bool {
	return b != nil && b.Node == n.name && b.Machine == n.machine
}

// taken is called when a block of another machine was taken or changed.
func (w *simWorld) taken(by *simNode, machine string, old, now *simBlock) {
	if now == nil || now.First != old.First || now.Last != old.Last || now.Node != by.name || now.Machine != machine {
		w.broken("%s removes the block %s-%s of %s", by.name, old.First, old.Last, old.Node)
		return
	}
	if age := w.now - old.claimed; old.Claim == "" || age < time.Duration(float64(simGrace)*(1-simDrift)) {
		w.broken("%s takes the block %s of %s after %s", by.name, old.First, old.Node, age)
	}
	if w.reg.joined[old.Node] && w.reg.changed[old.Node] < old.claimed && old.Node != by.name {
		w.broken("%s takes the block %s of %s, which has a record", by.name, old.First, old.Node)
	}
}

// left is called when a block is not its former owner's any more.
func (w *simWorld) left(old *simBlock, taken bool) {
	for _, n := range w.nodes {
		if !n.has(old) {
			continue
		}
		for i := range n.blocks {
			n.checkBlock(&n.blocks[i])
		}
		for i := range n.containers {
			c := &n.containers[i]
			switch {
			case !old.has(c.addr) || n.has(w.reg.owner(c.addr)):
			case taken:
				c.lost = true
			case !c.lost:
				w.broken("%s returns the address %s of a container", n.name, c.addr)
			}
		}
	}
}

// broken stores the first broken promise.
func (w *simWorld) broken(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *simWorld) Check() error { return w.err }

// add makes a container.
func (n *simNode) add(a *handler) string {
	n.made++
	c := simContainer{network: a.network, id: fmt.Sprint(n.name, "-", n.boots, "-", n.made)}
	res, err := a.Add(context.Background(), n.host, request(c.network, c.id))
	if err != nil {
		if !errors.Is(err, roles.ErrTryAgain) && !errors.Is(err, roles.ErrExhausted) {
			n.w.broken("ADD on %s: %v", n.name, err)
		}
		n.wanted[a.network] = true
		return "no address"
	}
	ip, _ := netip.AddrFromSlice(res.IPs[0].Address.IP)
	c.addr = ip.Unmap()
	if !n.has(n.w.reg.owner(c.addr)) {
		n.w.broken("%s gives %s to a container, and the registry has not that address for it", n.name, c.addr)
	}
	for _, other := range n.w.nodes {
		for _, o := range other.containers {
			if o.addr == c.addr && (!o.lost || other == n) {
				n.w.broken("%s gives %s to a container, and a container on %s has it", n.name, c.addr, other.name)
			}
		}
	}
	n.containers = append(n.containers, c)
	return c.addr.String()
}

// del ends a container.
func (n *simNode) del(i int) string {
	c := n.containers[i]
	n.containers = slices.Delete(n.containers, i, i+1)
	for _, a := range n.w.networks {
		if a.network == c.network {
			if err := a.Del(context.Background(), n.host, request(c.network, c.id)); err != nil {
				n.w.broken("DEL on %s: %v", n.name, err)
			}
		}
	}
	return c.addr.String()
}

// simActions are what can happen, with their usual weights.
var simActions = []struct {
	weight int
	do     func(*simNode, *rand.Rand) string
}{
	{40, (*simNode).work},
	{25, func(n *simNode, r *rand.Rand) string {
		a := n.w.networks[r.IntN(len(n.w.networks))]
		said := fmt.Sprintf("ADD %s: %s", a.network, n.add(a))
		if !n.wanted[a.network] || r.IntN(3) == 0 {
			return said
		}
		for n.task != nil { // the pass that does not know the demand
			said += n.work(r)
		}
		for begin := true; begin || n.task != nil; begin = false {
			said += n.work(r)
		}
		return said + "; again: " + n.add(a)
	}},
	{8, func(n *simNode, r *rand.Rand) string {
		if len(n.containers) == 0 {
			return "no container"
		}
		return "DEL " + n.del(r.IntN(len(n.containers)))
	}},
	{16, func(n *simNode, r *rand.Rand) string {
		n.w.now += []time.Duration{time.Second, time.Minute, 4 * time.Minute, 11 * time.Minute, 16 * time.Minute, 31 * time.Minute}[r.IntN(6)]
		return "time passes"
	}},
	{3, func(n *simNode, _ *rand.Rand) string { n.start(); return "the agent is killed and starts" }},
	{1, func(n *simNode, _ *rand.Rand) string { n.boot(); return "the node boots" }},
	{1, func(n *simNode, _ *rand.Rand) string { n.install(); return "the node is another machine" }},
	{2, func(n *simNode, r *rand.Rand) string {
		return n.setClock(r)
	}},
	{3, func(n *simNode, _ *rand.Rand) string { n.cut = !n.cut; return fmt.Sprint("cut off: ", n.cut) }},
	{2, func(n *simNode, _ *rand.Rand) string { n.w.reg.join(n.name, false); return "its record is deleted" }},
	{5, func(n *simNode, r *rand.Rand) string {
		n.away = !n.away
		if !n.away {
			return "reaches the registry again"
		}
		n.w.reg.join(n.name, false)
		return "isolated, and its record is deleted; " + n.setClock(r)
	}},
	{5, func(n *simNode, r *rand.Rand) string {
		if len(n.w.reg.late) == 0 {
			return "no late write"
		}
		i := r.IntN(len(n.w.reg.late))
		late := n.w.reg.late[i]
		n.w.reg.late = slices.Delete(n.w.reg.late, i, i+1)
		late()
		return "a late write is executed"
	}},
	{5, (*simNode).lateWrite},
}

// setClock suspends a virtual machine, and sets another machine's clock wrong: a block is valid by two clocks, of which one may fail.
func (n *simNode) setClock(r *rand.Rand) string {
	switch {
	case r.IntN(2) == 0:
		return "its clock goes on"
	case n.virtual:
		n.suspended = n.w.now
		return "the machine is suspended"
	}
	n.set = time.Duration(r.Int64N(int64(4*time.Hour))) - 2*time.Hour
	return fmt.Sprint("the clock is set wrong by ", n.set)
}

// wake ends the suspension of a machine.
func (n *simNode) wake() string {
	n.booted += n.w.now - n.suspended
	n.suspended = 0
	return "the machine is resumed"
}

// work lets the agent make some requests.
func (n *simNode) work(r *rand.Rand) string {
	if n.task == nil {
		n.pass()
	}
	said := ""
	for range 1 + r.IntN(12) {
		if n.task == nil {
			return said + "; the pass ends"
		}
		f := fine
		if n.w.faults > 0 && r.IntN(n.w.faults) == 0 {
			f = fate(1 + r.IntN(3))
		}
		said += n.request(f, r.IntN(4) == 0)
	}
	return said
}

// request lets the agent make its request.
func (n *simNode) request(f fate, slow bool) string {
	n.fate, n.slow = f, slow
	said := "; " + n.at + [...]string{"", " (the request is lost)", " (executed, the answer is lost)", " (executed late, without an answer)"}[f]
	n.task.Resume()
	n.settle()
	return said
}

// lateWrite lets the agent's next write fail, and executes it after some more requests of an agent.
func (n *simNode) lateWrite(r *rand.Rand) string {
	said := ""
	if n.task == nil {
		n.pass()
	}
	for n.task != nil && !strings.HasPrefix(n.at, "write") {
		said += n.request(fine, false)
	}
	before := len(n.w.reg.late)
	if n.task != nil {
		said += n.request(writtenLate, false)
	}
	if len(n.w.reg.late) == before {
		return said + "; no write"
	}
	late := n.w.reg.late[before]
	n.w.reg.late = n.w.reg.late[:before]
	if r.IntN(2) == 0 {
		n.start()
		said += "; the agent is killed and starts"
	}
	if r.IntN(2) == 0 {
		n.w.now += time.Duration(r.Int64N(int64(30 * time.Minute)))
		said += "; time passes"
	}
	for range r.IntN(20) {
		if n.task == nil {
			n.pass()
		}
		if n.task != nil {
			said += n.request(fine, false)
		}
	}
	late()
	return said + "; the late write is executed"
}

func (w *simWorld) Do(r *rand.Rand) string {
	// Few nodes are busy, so that they meet.
	n := w.nodes[r.IntN(min(len(w.nodes), 8))]
	if r.IntN(4) == 0 {
		n = w.nodes[r.IntN(len(w.nodes))]
	}
	if n.away && r.IntN(3) > 0 {
		n = w.nodes[r.IntN(len(w.nodes))]
	}
	said := func(what string) string { return fmt.Sprintf("%10s %s: %s", w.now.Round(time.Second), n.name, what) }
	if n.suspended > 0 {
		if r.IntN(6) == 0 {
			return said(n.wake())
		}
		awake := slices.DeleteFunc(slices.Clone(w.nodes), func(n *simNode) bool { return n.suspended > 0 })
		if len(awake) == 0 {
			return said(n.wake())
		}
		n = awake[r.IntN(len(awake))]
	}
	k := r.IntN(w.weights[len(w.weights)-1])
	i := slices.IndexFunc(w.weights, func(up int) bool { return k < up })
	return said(simActions[i].do(n, r))
}

// finish completes passes of all nodes.
func (w *simWorld) finish() error {
	var faults []error
	for _, n := range w.nodes {
		if n.task == nil {
			n.pass()
		}
		for n.task != nil {
			n.fate, n.slow = fine, false
			n.task.Resume()
			n.settle()
		}
		faults = append(faults, n.failed)
	}
	return errors.Join(faults...)
}

// End ends all faults but wrong clocks, and then all containers. Then no machine has a block, and an ADD gets an address.
func (w *simWorld) End() error {
	for _, n := range w.nodes {
		if n.suspended > 0 {
			n.wake()
		}
		n.cut, n.away, n.wanted = false, false, map[string]bool{}
	}
	_ = w.finish()
	w.now += 5 * time.Minute
	_ = w.finish() // a range may be full
	for _, n := range w.nodes {
		if len(n.blocks) > 0 && !w.reg.joined[n.name] {
			return fmt.Errorf("%s has blocks and no record", n.name)
		}
	}
	for _, late := range w.reg.late {
		late()
	}
	w.reg.late = nil
	for _, n := range w.nodes {
		n.wanted = map[string]bool{}
		for len(n.containers) > 0 {
			n.del(0)
		}
	}
	var err error
	for range 50 { // a pass returns one block of a page
		w.now += 65 * time.Minute // demands are forgotten, and blocks are idle
		if err = w.finish(); err != nil {
			return err
		}
		if err = w.remaining(); err == nil {
			return w.serves()
		}
	}
	return err
}

// serves returns an error if a node gets no address of a range that nobody uses.
func (w *simWorld) serves() error {
	n := w.nodes[len(w.nodes)/2]
	for _, a := range w.networks {
		said := n.add(a)
		for range 100 { // each one takes a block of a machine that was replaced
			if len(n.wanted) == 0 {
				break
			}
			w.now += 35 * time.Minute
			_ = w.finish()
			said = n.add(a)
		}
		if len(n.wanted) > 0 {
			return fmt.Errorf("%s: %s in %s", n.name, said, a.network)
		}
	}
	return nil
}

// remaining returns an error if a machine has a block.
func (w *simWorld) remaining() error {
	machines := map[string]bool{}
	for _, n := range w.nodes {
		machines[n.machine] = true
		if len(n.blocks) > 0 {
			return fmt.Errorf("%s has blocks without containers: %v", n.name, n.blocks)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.reg.pages)) {
		for _, b := range w.reg.pages[name].blocks {
			if machines[b.Machine] {
				return fmt.Errorf("the block %s of %s is left", b.First, b.Node)
			}
		}
	}
	return nil
}

func (w *simWorld) Close() {
	for _, n := range w.nodes {
		n.close()
	}
	_ = os.RemoveAll(w.root)
}

// TestSim plays histories of nodes that share ranges. No address is given to two containers, no block has two owners, and nothing is left.
func TestSim(t *testing.T) {
	p := sim.Plan{
		New:   func(n int, r *rand.Rand) sim.World { return newSimWorld(t, n, r) },
		Steps: func(n int) int { return 300 + 10*min(n, 100) },
	}
	p.Run(t, 40)
}
