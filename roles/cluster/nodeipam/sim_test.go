package nodeipam

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/objects"
	"github.com/cnibox/cnibox/store/cluster/web"
	"github.com/cnibox/cnibox/test/sim"
)

// simWorld is a cluster with replicas of nodeipam. It plays in a bubble of synctest, whose clock only ends pauses: every
// replica has its own clock for its Lease.
type simWorld struct {
	t        *testing.T
	replicas []*simReplica
	// objects are the texts by collection and name.
	objects map[string]map[string]simObject
	version int
	// events are the changes of Nodes, for watches.
	events []simEvent
	// checked is how many of them Check has seen.
	checked int
	late    []func()
	now     time.Duration
	// names are the Nodes of the cluster, and created how many were made.
	names    []string
	capacity int
	created  int
	faults   int
	// watch is how Nodes are followed: as in Kubernetes, as in etcd, or as in a directory without inotify.
	watch  watchKind
	mu     sync.Mutex
	parked []*simRequest
	err    error
}

type simObject struct {
	text    []byte
	version int
}

type simEvent struct {
	name string
	simObject
}

// simReplica is a process.
type simReplica struct {
	w      *simWorld
	number int
	lives  int
	rate   float64
	set    time.Duration
	cut    bool
	stop   func()
	done   chan struct{}
}

// simRequest is a request that waits for its execution or its answer.
type simRequest struct {
	of   *simReplica
	life int
	what string
	run  chan fate
}

type fate int

const (
	fine fate = iota
	lost
	answerLost
	writtenLate
)

type watchKind int

const (
	watchKube watchKind = iota
	watchEtcd
	watchDir
)

const nodeTexts = "nodeipam-nodes"

func newSimWorld(t *testing.T, n int, r *rand.Rand) *simWorld {
	t.Helper()
	w := &simWorld{t: t, objects: map[string]map[string]simObject{}, faults: []int{0, 5, 15}[r.IntN(3)], watch: watchKind(r.IntN(3))}
	w.capacity = 1
	for w.capacity < n {
		w.capacity *= 2
	}
	for i := range 2 + r.IntN(2) {
		p := &simReplica{w: w, number: i, rate: 1 + 0.05*(2*r.Float64()-1)}
		w.replicas = append(w.replicas, p)
		p.start()
	}
	for range n - 1 {
		w.create()
	}
	return w
}

func (p *simReplica) clock() time.Time {
	// Far from the bubble's clock, so that no context ends by it.
	return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(float64(p.w.now)*p.rate) + p.set)
}

// start starts the process.
func (p *simReplica) start() {
	p.lives++
	life := p.lives
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.stop, p.done = cancel, done
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("SEED") != "" {
		log = slog.New(slog.NewTextHandler(p.w.t.Output(), nil)).With("replica", p.number)
	}
	client := objects.New(simClient{p, life})
	reg := &registry{Objects: client, close: func() {}}
	reg.follow = func(ctx context.Context, to cluster.Follower[*nodeObject]) error {
		if p.w.watch == watchKube {
			return simCollection{simClient{p, life}, nodeTexts}.Watch(ctx, simNodes{to})
		}
		return objects.Follow(ctx, client, nodesPath, to)
	}
	n := networks{clusters: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, mask4: 16}
	for size := 1; size < p.w.capacity; size *= 2 {
		n.mask4++
	}
	o := election.Options{
		Client: client, Namespace: "kube-system", Name: lockName, Identity: fmt.Sprintf("replica-%d-%d", p.number, life), Now: p.clock,
		Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 1, Log: log, Seen: func(string, error) {},
	}
	go func() {
		defer close(done)
		_ = election.Run(ctx, o, func(ctx context.Context, term *election.Term) bool {
			t, err := n.table()
			if err != nil {
				p.w.broken("%v", err)
			}
			c := newController(reg, log, term, t, &n)
			// One worker and no random pauses: the order of requests follows the seed.
			c.workers, c.queue = 1, newQueue(web.Backoff{Min: time.Second, Max: time.Second, Fixed: true})
			return c.run(ctx)
		})
	}()
}

// kill ends the process: no request of it is executed any more.
func (p *simReplica) kill() {
	p.w.mu.Lock()
	p.lives++
	p.w.mu.Unlock()
	p.stop()
	for _, q := range p.w.take(func(q *simRequest) bool { return q.of == p }) {
		close(q.run)
	}
	<-p.done
}

// take removes requests that wait.
func (w *simWorld) take(is func(*simRequest) bool) (all []*simRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parked = slices.DeleteFunc(w.parked, func(q *simRequest) bool {
		if is(q) {
			all = append(all, q)
			return true
		}
		return false
	})
	return all
}

// simClient is the registry of one life of a process.
type simClient struct {
	p    *simReplica
	life int
}

var errDead = fmt.Errorf("%w: the process has ended", cluster.ErrUnavailable)

// park waits until the request is to be executed.
func (c simClient) park(what string) (fate, error) {
	q := &simRequest{of: c.p, life: c.life, what: what, run: make(chan fate)}
	c.p.w.mu.Lock()
	if c.p.lives != c.life {
		c.p.w.mu.Unlock()
		return lost, errDead
	}
	c.p.w.parked = append(c.p.w.parked, q)
	c.p.w.mu.Unlock()
	f, ok := <-q.run
	if !ok {
		return lost, errDead
	}
	return f, nil
}

// do performs a request.
func (c simClient) do(what string, execute func() error, writes bool) error {
	f, err := c.park(what)
	if err != nil {
		return err
	}
	failed := fmt.Errorf("%w: %s", cluster.ErrUnavailable, what)
	if f == fine || f == answerLost {
		err = execute()
	}
	if f == writtenLate && writes {
		c.p.w.late = append(c.p.w.late, func() { _ = execute() })
	}
	if f != fine {
		err = failed
	}
	// The answer comes later.
	if _, dead := c.park("answer of " + what); dead != nil {
		return dead
	}
	return err
}

func (c simClient) Collection(name string) cluster.Watched { return simCollection{c, name} }

type simCollection struct {
	simClient
	name string
}

func (l simCollection) List(_ context.Context, each func(string, []byte, string)) error {
	var all map[string]simObject
	err := l.do("list "+l.name, func() error { all = maps.Clone(l.p.w.objects[l.name]); return nil }, false)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		each(name, all[name].text, strconv.Itoa(all[name].version))
	}
	return nil
}

func (l simCollection) Read(_ context.Context, name string) (text []byte, version string, err error) {
	err = l.do("read "+name, func() error {
		if o, ok := l.p.w.objects[l.name][name]; ok {
			text, version = o.text, strconv.Itoa(o.version)
		}
		return nil
	}, false)
	if err != nil {
		return nil, "", err
	}
	return text, version, nil
}

func (l simCollection) Write(_ context.Context, name string, text []byte, version string) (next string, err error) {
	err = l.do("write "+name, func() (err error) { next, err = l.p.w.write(l.name, name, text, version); return err }, true)
	if err != nil {
		return "", err
	}
	return next, nil
}

// simNodes passes Nodes on as an API server's client does.
type simNodes struct{ cluster.Follower[*nodeObject] }

func (n simNodes) Put(t cluster.Text, listing bool) { n.Follower.Put(simNodeOf(t), listing) }

// Watch reads all texts, and follows them late. The watch ends, and the history that it needs may be gone then.
func (l simCollection) Watch(ctx context.Context, to cluster.Follower[cluster.Text]) error {
	w := l.p.w
	at := -1
	for ctx.Err() == nil {
		if w.watch == watchDir {
			at = -1
		}
		f, err := l.park("watch")
		switch {
		case err != nil:
			return err
		case f == lost:
			to.Failed(cluster.ErrUnavailable)
			if w.compacts(at) {
				at = -1
			}
		case at < 0 || f == writtenLate:
			all := maps.Clone(w.objects[l.name])
			at = len(w.events)
			if _, err := l.park("answer of list"); err != nil {
				return err
			}
			names := map[string]bool{}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				names[name] = true
				to.Put(simText(name, all[name]), true)
			}
			to.Complete(names)
		case at < len(w.events):
			e := w.events[at]
			at++
			for range 1 + len(e.text)%2 { // also twice
				if e.text == nil {
					to.Remove(e.name, false)
				} else {
					to.Put(simText(e.name, e.simObject), false)
				}
			}
		default:
			to.Recovered()
		}
	}
	return ctx.Err()
}

// compacts reports whether the events after a failed watch are gone.
func (w *simWorld) compacts(at int) bool { return len(w.events)-at > 5 }

func simText(name string, o simObject) cluster.Text {
	return cluster.Text{Name: name, Version: strconv.Itoa(o.version), Text: o.text}
}

func simNodeOf(t cluster.Text) *nodeObject {
	n := &nodeObject{}
	_ = json.Unmarshal(t.Text, n)
	n.Metadata.ResourceVersion = t.Version
	return n
}

func podCIDRsOf(o simObject) []string { return simNodeOf(simText("", o)).Spec.PodCIDRs }

// write replaces or deletes an object, and checks what it becomes.
func (w *simWorld) write(collection, name string, text []byte, version string) (string, error) {
	all := w.objects[collection]
	before, exists := all[name]
	if exists != (version != "") || exists && version != strconv.Itoa(before.version) {
		return "", cluster.ErrRaced
	}
	w.version++
	o := simObject{text, w.version}
	switch {
	case text == nil:
		delete(all, name)
	case all == nil:
		w.objects[collection] = map[string]simObject{name: o}
	default:
		all[name] = o
	}
	if collection == nodeTexts {
		w.events = append(w.events, simEvent{name, o})
		if exists && text != nil && len(podCIDRsOf(before)) > 0 && !slices.Equal(podCIDRsOf(before), podCIDRsOf(o)) {
			w.broken("the pod network of %s changes", name)
		}
	}
	return strconv.Itoa(w.version), nil
}

func (w *simWorld) broken(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// create makes a Node.
func (w *simWorld) create() string {
	w.created++
	name := fmt.Sprint("node-", w.created%(w.capacity+2))
	if slices.Contains(w.names, name) || len(w.names) == w.capacity {
		return "no new node"
	}
	text := fmt.Sprintf(`{"metadata": {"name": %q, "uid": "uid-%d"}}`, name, w.created)
	if _, err := w.write(nodeTexts, name, []byte(text), ""); err != nil {
		w.broken("%v", err)
	}
	w.names = append(w.names, name)
	return name + " is made"
}

func (w *simWorld) delete(i int) string {
	name := w.names[i]
	w.names = slices.Delete(w.names, i, i+1)
	if _, err := w.write(nodeTexts, name, nil, strconv.Itoa(w.objects[nodeTexts][name].version)); err != nil {
		w.broken("%v", err)
	}
	return name + " is deleted"
}

// step executes a request of a process, or sends its answer.
func (w *simWorld) step(p *simReplica, pick func(n int) int, f fate) string {
	synctest.Wait()
	w.mu.Lock()
	mine := slices.DeleteFunc(slices.Clone(w.parked), func(q *simRequest) bool { return q.of != p || q.life != p.lives })
	w.mu.Unlock()
	if len(mine) == 0 {
		time.Sleep(time.Minute) // the bubble's: a pause ends
		return "waits"
	}
	slices.SortStableFunc(mine, func(a, b *simRequest) int { return cmp.Compare(a.what, b.what) })
	q := mine[pick(len(mine))]
	if strings.HasPrefix(q.what, "answer") {
		f = fine
	} else if p.cut {
		f = lost
	}
	w.take(func(o *simRequest) bool { return o == q })
	q.run <- f
	synctest.Wait()
	return q.what + [...]string{"", " (lost)", " (executed, the answer is lost)", " (executed late, without an answer; or the watch begins again)"}[f]
}

func (w *simWorld) Do(r *rand.Rand) string {
	p := w.replicas[r.IntN(len(w.replicas))]
	said := func(s string) string { return fmt.Sprintf("%8s replica %d: %s", w.now, p.number, s) }
	switch k := r.IntN(100); {
	case k < 70:
		var all []string
		for range 1 + r.IntN(20) {
			f := fine
			if w.faults > 0 && r.IntN(w.faults) == 0 {
				f = fate(1 + r.IntN(3))
			}
			all = append(all, w.step(p, r.IntN, f))
		}
		return said(strings.Join(all, "; "))
	case k < 80:
		w.now += []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second, 9 * time.Second, 16 * time.Second}[r.IntN(5)]
		time.Sleep(time.Minute) // the bubble's: pauses end
		return said("time passes")
	case k < 85:
		return said(w.create())
	case k < 90 && len(w.names) > 0:
		return said(w.delete(r.IntN(len(w.names))))
	case k < 93:
		p.kill()
		p.start()
		return said("is killed and starts")
	case k < 95:
		p.cut = !p.cut
		return said(fmt.Sprint("cut off: ", p.cut))
	case k < 96:
		p.set = time.Duration(r.Int64N(int64(time.Hour)))
		return said("its clock is set")
	case len(w.late) > 0:
		i := r.IntN(len(w.late))
		late := w.late[i]
		w.late = slices.Delete(w.late, i, i+1)
		late()
		return said("a late write is executed")
	}
	return said("nothing")
}

// Check checks that no pod network has two Nodes.
func (w *simWorld) Check() error {
	if w.err != nil {
		return w.err
	}
	if w.checked == len(w.events) {
		return nil
	}
	w.checked = len(w.events)
	owners := map[string]string{}
	for name, o := range w.objects[nodeTexts] {
		for _, p := range podCIDRsOf(o) {
			if owners[p] != "" {
				return fmt.Errorf("%s and %s have %s", name, owners[p], p)
			}
			owners[p] = name
		}
	}
	return nil
}

// End replaces all Nodes by as many as there are networks. All get one.
func (w *simWorld) End() error {
	w.faults = 0
	for _, p := range w.replicas {
		p.cut = false
	}
	for _, late := range w.late {
		late()
	}
	w.late = nil
	for len(w.names) > 0 {
		w.delete(0)
	}
	for len(w.names) < w.capacity {
		w.create()
	}
	r := rand.New(rand.NewPCG(1, 2))
	var last []string
	for range 400 + 30*w.capacity {
		w.now += 100 * time.Millisecond
		time.Sleep(time.Minute)
		for _, p := range w.replicas {
			for range 12 {
				last = append(last[max(0, len(last)-60):], w.step(p, r.IntN, fine))
			}
		}
		if w.err != nil || w.assigned() {
			return w.err
		}
	}
	return fmt.Errorf("not every Node has a pod network; the last requests: %s", strings.Join(last, "; "))
}

func (w *simWorld) assigned() bool {
	for _, o := range w.objects[nodeTexts] {
		if len(podCIDRsOf(o)) == 0 {
			return false
		}
	}
	return true
}

func (w *simWorld) Close() {
	for _, p := range w.replicas {
		p.kill()
	}
}

// TestSim plays histories of replicas that assign pod networks. No network is given to two Nodes, and none is lost.
func TestSim(t *testing.T) {
	p := sim.Plan{
		New:   func(n int, r *rand.Rand) sim.World { return newSimWorld(t, n, r) },
		Steps: func(n int) int { return 150 + min(n, 100) },
		Play:  func(play func()) { synctest.Test(t, func(*testing.T) { play() }) },
	}
	p.Run(t, 40)
}
