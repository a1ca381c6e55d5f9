package nodeipam

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	nodesPath = "/api/v1/nodes"
	// fenceAnnotation is set to a new value by a new leader, and removed with the assignment.
	fenceAnnotation = "cnibox.io/nodeipam-fence"
	// maxWorkers is the number of requests at a time. The client keeps as many unused connections.
	maxWorkers = 32
	// attempts bounds the requests for a node before an event and a pause.
	attempts = 3
	// requestTime bounds a request and the pauses that the server asks for.
	requestTime = 30 * time.Second
	// fenceTime is longer than a server executes a request (kube-apiserver --request-timeout, 1m).
	fenceTime = 2 * time.Minute
)

// controller assigns pod networks in one term of a leader. It is a cluster.Follower.
type controller struct {
	client *registry
	log    *slog.Logger
	term   *election.Term
	queue  *queue
	// workers is maxWorkers. A simulation has one.
	workers int

	mu    sync.Mutex
	table *table
	// errs are the reasons why a collection cannot be followed, by its path.
	errs map[string]error
	// listed is closed when all nodes are known, and all ClusterCIDRs if they are used.
	listed   chan struct{}
	unlisted map[string]bool // the collections that are not known
	// networks has the file of ClusterCIDRs, which is read again at the interval, or it has none.
	networks *networks
	interval time.Duration
	// fromRanges is true if ClusterCIDR objects are followed, and withLabels if a range may select nodes.
	fromRanges, withLabels bool
	// assigning is true when every former leader's requests are finished.
	assigning bool

	// unanswered is true after a request that the server may still execute.
	unanswered atomic.Bool
}

// newController returns a controller that gives blocks of t, the table of n.
func newController(client *registry, log *slog.Logger, term *election.Term, t *table, n *networks) *controller {
	c := &controller{
		client: client, log: log, term: term, table: t, listed: make(chan struct{}),
		errs: map[string]error{}, unlisted: map[string]bool{nodesPath: true},
		networks: n, fromRanges: n.objects, withLabels: n.objects || n.file != "",
		workers: maxWorkers, queue: newQueue(web.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Minute}),
	}
	if n.objects {
		c.unlisted[rangesPath] = true
	}
	return c
}

func (c *controller) isSynced() bool { return len(c.unlisted) == 0 }

// synced is called when all objects of a collection are known.
func (c *controller) synced(path string) {
	if c.unlisted[path] {
		delete(c.unlisted, path)
		if c.isSynced() {
			close(c.listed)
			for name := range c.table.nodes {
				c.warn(name)
			}
		}
	}
}

// run assigns pod networks until ctx ends. It returns true if the next leader may start without fencing:
// every request was answered, and so was every request of former leaders.
func (c *controller) run(ctx context.Context) (answered bool) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	defer c.queue.stop()
	running.Go(func() { _ = c.client.follow(ctx, c) })
	if c.fromRanges {
		running.Go(func() { _ = rest.Follow(ctx, c.client.api, rangesPath, rangeFollower{c}) })
	} else if c.networks.file != "" {
		running.Go(func() { rangeFollower{c}.followFile(ctx) })
	}
	select {
	case <-c.listed:
	case <-ctx.Done():
		return c.term.Released
	}
	if !c.term.Released && !c.fence(ctx) {
		return false
	}
	c.mu.Lock()
	c.assigning = true
	c.queue.add(c.table.unfinished()...)
	for _, r := range c.table.ranges {
		c.queueRanges(r.name)
	}
	c.mu.Unlock()
	var working sync.WaitGroup
	for range c.workers {
		working.Go(func() {
			for {
				name, ok := c.queue.next(ctx)
				if !ok {
					return
				}
				if of, is := strings.CutPrefix(name, rangeKey); is {
					c.queue.done(name, c.keepRange(ctx, of))
				} else {
					c.queue.done(name, c.assign(ctx, name))
				}
			}
		})
	}
	working.Wait()
	return !c.unanswered.Load()
}

// Put stores a Node.
func (c *controller) Put(o *nodeObject, listing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.alone = c.assigning && c.term.Valid()
	waits, released := c.table.put(o)
	c.warn(o.Metadata.Name)
	if listing || !c.assigning {
		return // run or Complete adds the nodes
	}
	if waits || c.table.nodes[o.Metadata.Name].outdated() {
		c.queue.add(o.Metadata.Name)
	}
	if released {
		c.released()
	}
}

// released adds what waits for blocks to be released.
func (c *controller) released() {
	c.queue.add(c.table.starved()...)
	c.queueRanges(c.table.draining()...)
}

// Remove removes a deleted Node.
func (c *controller) Remove(name string, listing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.remove(name)
	if !listing && c.assigning {
		c.released()
	}
}

// Complete removes the Nodes that do not exist any more.
func (c *controller) Complete(names map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.errs, nodesPath)
	c.table.keep(names)
	if c.assigning {
		c.queue.add(c.table.unfinished()...)
		c.queueRanges(c.table.draining()...)
	}
	c.synced(nodesPath)
}

// Failed stores why the Nodes cannot be followed.
func (c *controller) Failed(err error) { c.failed(nodesPath, err) }

// Recovered is called when the Nodes can be followed again.
func (c *controller) Recovered() { c.recovered(nodesPath) }

// failed stores why a collection cannot be followed.
func (c *controller) failed(path string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errs[path] == nil {
		c.log.Warn("cannot follow the nodes or ClusterCIDRs", "error", err)
	}
	c.errs[path] = err
}

func (c *controller) recovered(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.errs, path)
}

// refresh stores a Node as a reply had it.
func (c *controller) refresh(o *nodeObject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.alone = c.assigning && c.term.Valid()
	c.table.refresh(o)
	c.warn(o.Metadata.Name)
}

// warn logs the faults of an assigned node once, when all ranges are known.
func (c *controller) warn(name string) {
	n := c.table.nodes[name]
	if n == nil || !n.assigned || n.logged || !c.isSynced() {
		return
	}
	n.logged = true
	if err := c.table.why(n); err != nil {
		c.log.Warn("a node needs an operator", "node", name, "error", err)
	}
}

// fence changes the resourceVersion of every Node that a former leader may still assign networks to, so
// that such a request fails. If one was executed before, the reply has its networks. It returns false if
// ctx ends.
func (c *controller) fence(ctx context.Context) bool {
	c.mu.Lock()
	names := make(chan string, len(c.table.nodes))
	for _, name := range c.table.waiting() {
		names <- name
	}
	c.mu.Unlock()
	close(names)
	value := rand.Text() // a patch that changes nothing would not change the version
	var running sync.WaitGroup
	for range c.workers {
		running.Go(func() {
			for name := range names {
				c.fenceNode(ctx, name, value)
			}
		})
	}
	running.Wait()
	return ctx.Err() == nil
}

// fenceNode tries until the Node has another version or ctx ends. After fenceTime it gives up if the
// server refuses every change of this Node, because one Node must not stop all others.
func (c *controller) fenceNode(ctx context.Context, name, value string) {
	if rest.CheckName("node", name) != nil {
		return
	}
	var wait web.Backoff
	patch := rest.Annotations("", "", map[string]*string{fenceAnnotation: &value})
	for begin := time.Now(); ; {
		var o nodeObject
		err := c.client.Patch(ctx, rest.Path("api", "v1", "nodes", name), rest.MergePatch, patch, &o)
		if err == nil {
			c.refresh(&o)
		}
		if err == nil || errors.Is(err, rest.ErrNotFound) {
			return
		}
		c.mu.Lock()
		c.table.fail(name, fmt.Errorf("protect the node from requests of the former leader: %w", err))
		c.mu.Unlock()
		if time.Since(begin) > fenceTime && isRefusal(err) {
			c.log.Warn("cannot protect a node from requests of the former leader", "node", name, "error", err)
			return
		}
		if wait.Wait(ctx, 0) != nil {
			return
		}
	}
}

// isRefusal reports whether the server refuses a change of a Node, also because an admission webhook fails (500).
func isRefusal(err error) bool {
	var status *rest.StatusError
	return errors.Is(err, cluster.ErrInvalid) || errors.Is(err, rest.ErrForbidden) ||
		errors.As(err, &status) && status.Code == http.StatusInternalServerError
}

// assign gives a Node its pod networks, and returns true if that must be tried again.
func (c *controller) assign(ctx context.Context, name string) (retry bool) {
	var err error
	for range attempts {
		var labels map[string]string
		if c.withLabels {
			labels, err = c.labels(ctx, name)
			if errors.Is(err, rest.ErrNotFound) { // the next Node of this name can have other labels
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.table.nodes[name] != nil
			}
			if err != nil {
				break
			}
		}
		c.mu.Lock()
		a, full := c.table.assign(name, labels)
		c.mu.Unlock()
		switch {
		case full != nil:
			c.report(ctx, name, notAvailable, full)
			return true
		case a == nil:
			return c.clear(ctx, name)
		}
		if ctx.Err() != nil || !c.term.Valid() {
			return true // the next leader assigns it
		}
		if err = c.patch(ctx, name, a); err == nil {
			return c.clear(ctx, name)
		}
	}
	c.mu.Lock()
	c.table.fail(name, err)
	c.mu.Unlock()
	if !errors.Is(err, rest.ErrConflict) { // a Node that other programs change often is tried again
		c.report(ctx, name, assignmentFailed, err)
	}
	return true
}

// nodePatch is the merge patch of an assignment.
type nodePatch struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion"`
		Annotations     map[string]*string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
}

func newNodePatch(version string, cidrs []netip.Prefix) *nodePatch {
	p := &nodePatch{}
	p.Metadata.ResourceVersion = version
	for _, cidr := range cidrs {
		p.Spec.PodCIDRs = append(p.Spec.PodCIDRs, cidr.String())
	}
	p.Spec.PodCIDR = p.Spec.PodCIDRs[0]
	return p
}

// patch writes an assignment. After an error it reads the Node, so that the table has what the server
// has executed. The request is not cancelled with ctx, so that the answer is known.
func (c *controller) patch(ctx context.Context, name string, a *assignment) error {
	p := newNodePatch(a.version, a.cidrs)
	if a.fenced {
		p.Metadata.Annotations = map[string]*string{fenceAnnotation: nil}
	}
	until := c.term.Until()
	if most := time.Now().Add(requestTime); most.Before(until) {
		until = most
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	path := rest.Path("api", "v1", "nodes", name)
	var o nodeObject
	err := c.client.assign(ctx, path, p, &o)
	if err == nil {
		c.refresh(&o)
		c.log.Info("assigned pod networks", "node", name, "podCIDRs", p.Spec.PodCIDRs)
		return nil
	}
	var status *rest.StatusError
	answered := errors.As(err, &status) || errors.Is(err, rest.ErrConflict) || errors.Is(err, rest.ErrNotFound)
	if !answered || errors.Is(err, cluster.ErrUnavailable) {
		c.unanswered.Store(true)
	}
	o = nodeObject{}
	if c.client.Get(ctx, path, &o) == nil {
		c.refresh(&o)
	}
	return fmt.Errorf("assign %v: %w", p.Spec.PodCIDRs, err)
}
