// Package egress lets the pods of annotated namespaces leave the cluster with an address that one node holds.
//
// Three kinds of objects of Kubernetes say how. The annotation of a Namespace names the addresses. A Lease for each address says
// which of the labelled nodes may hold it: only these nodes read it. A ConfigMap for each address says which node does, for the agents
// of all nodes, and is written at each change only. A ConfigMap for each node names its pods, for the holders.
//
// The holder has the address with a lifetime in the kernel that ends before another node can have the Lease, also if its agent was killed
// or stopped. hold.go has the times.
package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/egress"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// Options are the arguments of Open.
type Options struct {
	// Host is used by the Keeper only.
	Host *roles.Host
	// Server is the agent's, which answers ADD calls.
	Server *service.Server
	Client *rest.Client
	// Node is the name of this node's Node object.
	Node string
	// Namespace has the Leases and ConfigMaps.
	Namespace string
	// Networks are the addresses that annotations may name.
	Networks []netip.Prefix
	// Known are the annotated namespaces that a former agent has told ADD calls, or nil.
	Known []string
	Log   *slog.Logger
}

// resyncInterval is the time between two comparisons with the kernel without an event.
const resyncInterval = 30 * time.Second

// Keeper does this node's part.
type Keeper struct {
	Options
	kernel *egress.Kernel
	// endRequests ends the handlers of requests.
	endRequests func()
	// changes tells the agent that the namespaces have changed. work makes Run compare.
	changes, work chan struct{}
	// current is what Status returns.
	current atomic.Pointer[Status]

	// comparing is held while the kernel is compared, and publishing while what it needs is written for other nodes.
	comparing, publishing sync.Mutex
	last                  *decision
	// failure is the last logged one. namespaces and unready are those of which the agent was notified last.
	failure, unready string
	namespaces       []string

	// mu protects what the followers and the agent write.
	mu        sync.Mutex
	facts     facts
	listed    int // collections that were read
	view      *View
	told      []string
	own       ownNode
	unread    map[string]error // why what cannot be read
	campaigns map[netip.Addr]*campaign
	written   map[netip.Addr]string
	writtenAt time.Time
}

// Open opens a Keeper in the network namespace of the process.
func Open(o Options) (*Keeper, error) {
	k := &Keeper{
		Options: o, changes: make(chan struct{}, 1), work: make(chan struct{}, 1), unread: map[string]error{}, campaigns: map[netip.Addr]*campaign{},
		facts: facts{
			node: o.Node, requests: map[string]Request{}, holders: map[netip.Addr]string{}, published: map[string]map[netip.Addr]string{}, held: map[netip.Addr]bool{},
		},
	}
	k.current.Store(&Status{})
	var err error
	k.kernel, err = egress.Open(o.Host.Net.Clone())
	if err != nil {
		return nil, err
	}
	k.endRequests = o.Server.Handle(k.handlers())
	return k, nil
}

// Close closes the sockets. The kernel's state stays, and the address of a holder ends by its lifetime.
func (k *Keeper) Close() error {
	k.endRequests()
	return errors.Join(k.kernel.Close(), k.Host.Net.Close())
}

// Changes receives a value when Namespaces, Unready or the Status has changed.
func (k *Keeper) Changes() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.changes
}

// Namespaces returns the annotated namespaces in order. ADD calls of other namespaces do not ask.
func (k *Keeper) Namespaces() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isSynced() {
		return k.Known
	}
	return slices.Sorted(maps.Keys(k.facts.requests))
}

// Unready returns why no pod may be attached, or nil.
func (k *Keeper) Unready() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isSynced() && k.Known == nil {
		return errors.New("egress addresses: the agent has not read the namespaces yet")
	}
	if k.facts.Fault != nil {
		return fmt.Errorf("egress addresses: %w", k.facts.Fault)
	}
	return nil
}

// collections are followed: namespaces, ConfigMaps and this node.
const collections = 3

// isSynced reports whether everything was read once.
func (k *Keeper) isSynced() bool { return k.listed == collections && k.view != nil }

// SetView stores what the agent knows, which the agent does not change any more, and the Namespaces that it has written where ADD calls read
// them. The comparison that follows finds the pods of calls that read them before that.
func (k *Keeper) SetView(v *View, told []string) {
	if k == nil || v == nil {
		return
	}
	k.mu.Lock()
	same := k.view == v && slices.Equal(k.told, told)
	k.view, k.told, k.facts.View = v, told, *v
	k.mu.Unlock()
	if !same {
		notify(k.work)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { k.follow(ctx, &running) })
	tick := time.NewTicker(resyncInterval)
	defer tick.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.work:
		case <-k.kernel.Changes():
		case <-tick.C:
		case <-retry:
		}
		retry = nil
		if err := k.compare(ctx); err != nil && ctx.Err() == nil {
			retry = time.After(time.Second)
		}
		k.campaign(ctx, &running)
		if err := k.publish(ctx); err != nil && ctx.Err() == nil {
			retry = time.After(time.Second)
		}
	}
}

// compare makes the kernel match what is decided. Until everything is known, it leaves what a former agent made.
func (k *Keeper) compare(ctx context.Context) (err error) {
	k.comparing.Lock()
	defer k.comparing.Unlock()
	defer func() { k.report(err) }()
	k.mu.Lock()
	if !k.isSynced() {
		k.mu.Unlock()
		return nil
	}
	f := k.facts
	f.requests, f.holders, f.held = maps.Clone(f.requests), maps.Clone(f.holders), maps.Clone(f.held)
	f.published = maps.Clone(f.published)
	k.mu.Unlock()
	f.pods, err = k.readPods(ctx, f.requests)
	if err != nil {
		return err
	}
	if k.last != nil {
		f.indexes = k.last.indexes
	}
	d := decide(&f)
	if err := k.kernel.Apply(ctx, d.spec); err != nil {
		return err
	}
	before := k.last
	k.last = d
	return k.forget(ctx, before, d, &f)
}

// forget ends the connections of pods whose packets are translated in another way now: the kernel would go on with that of a connection's first
// packet, for as long as the pod sends some. The first comparison looks at what happened without an agent.
func (k *Keeper) forget(ctx context.Context, before, now *decision, f *facts) error {
	is := now.sources()
	if before != nil {
		was := before.sources()
		if maps.Equal(was, is) {
			return nil
		}
		for own := range was {
			if _, has := is[own]; !has {
				is[own] = netip.Addr{}
			}
		}
	}
	return k.kernel.Forget(ctx, is, f.inside)
}

// readPods returns the attachments of annotated namespaces on the cluster's network.
func (k *Keeper) readPods(ctx context.Context, requests map[string]Request) (pods []localPod, err error) {
	if len(requests) == 0 {
		return nil, nil
	}
	all, err := store.Read(ctx, k.Host.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments("") })
	if err != nil {
		return nil, err
	}
	links, err := k.Host.Net.Links(ctx, nil)
	if err != nil {
		return nil, err
	}
	for i := range all {
		a := &all[i]
		namespace, name, _ := strings.Cut(a.Pod, "/")
		if _, annotated := requests[namespace]; !annotated || a.IfName != enforce.Interface {
			continue
		}
		p := localPod{Namespace: namespace, Name: name, Device: a.HostLink, MAC: a.MAC}
		for _, one := range a.Addresses {
			p.Addresses = append(p.Addresses, one.Addr())
		}
		if bridge := bridgeOf(links, a.HostLink); bridge != "" {
			p.Device = bridge
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// bridgeOf returns the bridge that a link is a port of, on which its packets arrive, or "".
func bridgeOf(links []netops.LinkInfo, name string) string {
	i := slices.IndexFunc(links, func(l netops.LinkInfo) bool { return l.Name == name && name != "" })
	if i < 0 || !slices.ContainsFunc(links, func(l netops.LinkInfo) bool { return l.Name == links[i].Master && l.Kind == "bridge" }) {
		return ""
	}
	return links[i].Master
}

// report logs faults and makes the status.
func (k *Keeper) report(err error) {
	s := k.status(err)
	text := strings.Join(s.Faults, "; ")
	if text != k.failure {
		k.failure = text
		if text != "" {
			k.Log.Warn("egress addresses have faults", "faults", text)
		} else {
			k.Log.Info("egress addresses have no faults any more")
		}
	}
	unready := ""
	if why := k.Unready(); why != nil {
		unready = why.Error()
	}
	namespaces := k.Namespaces()
	old := k.current.Swap(s)
	if unready != k.unready || !slices.Equal(namespaces, k.namespaces) || !reflect.DeepEqual(old, s) {
		k.unready, k.namespaces = unready, namespaces
		notify(k.changes)
	}
}
