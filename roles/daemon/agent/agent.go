package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store/cluster"
)

// slow is how long nothing is looked at anew without a reason.
const slow = time.Minute

// agent keeps one node's pod network connected. Its fields belong to the loop,
// but for those that say otherwise.
type agent struct {
	host   *roles.Host
	log    *slog.Logger
	set    *settings
	engine *engine
	memory memory

	// heard has what the registry told, acquired what came of publishing; the
	// loop takes both.
	heard    chan news
	acquired chan acquisition
	// publish and ready ask for this node to be published, and for the registry
	// to be told that it works.
	publish chan cluster.Node
	ready   chan struct{}
	// shown is what status and health tell; anybody may load it.
	shown atomic.Pointer[standing]

	links []netops.HostLink
	// config, underlay and snapshot are the last good ones.
	config    *cluster.Config
	configErr error
	underlay  underlay
	linkErr   error
	snapshot  *cluster.Snapshot
	// wishes are what people ask of this node in the registry.
	wishes cluster.Wishes
	// fed: a snapshot came since memory was given back last.
	fed bool
	// registryErr tells that the registry cannot be heard now.
	registryErr error
	macs        map[string]string

	// asked is the record that was to be published last, own what it became.
	asked *cluster.Node
	own   *cluster.Node
	// repaired is the snapshot that showed another record than own, for which it
	// was asked again.
	repaired   *cluster.Snapshot
	acquireErr error
	announced  bool
	// compared is the snapshot that this node's VTEPs were last told from others' in.
	compared *cluster.Snapshot

	known verdicts
	// peers are what seen came to.
	peers    *peers
	seen     *cluster.Snapshot
	families [2]*family
	filter   *overlay.Filter
	files    files
	socket   *socket
	removed  *removal
	// reason is what was logged last, so that one fault does not fill the log.
	reason   string
	wasReady bool
}

// run is the loop: whatever happens, everything is compared with what it has to
// be, and what differs is put right. It ends with ctx, or when the registry has to
// be opened again.
func (a *agent) run(ctx context.Context, links *netops.LinkMonitor) (again bool) {
	a.readLinks(ctx)
	for {
		next := a.pass(ctx)
		timer, idle := time.NewTimer(next), a.idle()
		select {
		case <-ctx.Done():
		case n := <-a.heard:
			a.take(n)
		case r := <-a.acquired:
			a.takeOwn(ctx, r)
		case <-links.Changes():
			a.readLinks(ctx)
		case <-a.families[0].changes():
		case <-a.families[1].changes():
		case <-a.filter.Changes():
		case <-a.removed.changes():
		case <-idle:
			debug.FreeOSMemory()
			a.fed = false
		case <-timer.C:
			a.readLinks(ctx)
			if a.outdated() {
				return true
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
}

// A snapshot of many nodes is digested after a while; then the memory that it
// took is given back, most of which is not needed again.
const (
	digestion = 2 * time.Second
	manyNodes = 1000
)

// idle tells when a large snapshot is digested.
func (a *agent) idle() <-chan time.Time {
	if !a.fed || a.snapshot == nil || len(a.snapshot.Nodes) < manyNodes {
		return nil
	}
	return time.After(digestion)
}

// take takes over what the registry told.
func (a *agent) take(n news) {
	a.registryErr = n.err
	if n.snapshot == nil {
		return
	}
	own := a.engine.node
	if a.own != nil {
		own = a.own.Name
	}
	a.fed = true
	a.snapshot = keepFaulty(a.snapshot, n.snapshot, own)
	if a.own == nil {
		a.wishes = n.wishes
	} else if listed := a.listed(); listed != nil {
		a.wishes = listed.Wishes
	}
	if a.engine.config != nil {
		a.takeConfig(a.engine.config, nil)
		return
	}
	a.takeConfig(n.config, n.configErr)
	for name, err := range n.snapshot.Faults {
		if isConfig(name) { // the snapshot has the last good one
			a.configErr = err
		}
	}
}

// isConfig tells a registry's fault in its configuration from a node's: no node
// is named like that.
func isConfig(name string) bool { return strings.HasPrefix(name, "/") }

// takeConfig takes over a configuration; a wrong one leaves the last in force.
func (a *agent) takeConfig(c *cluster.Config, err error) {
	if err == nil && c == nil {
		err = errors.New("the registry holds no network configuration")
	}
	if a.configErr = err; err == nil && (a.config == nil || *a.config != *c) {
		a.config, a.peers = c, nil
	}
}

// outdated tells that the configuration is a file, which says something else by
// now. A wrong one leaves the last in force.
func (a *agent) outdated() bool {
	if a.engine.config == nil {
		return false
	}
	c, err := readNetConf(a.set.netConf, func(string) {})
	a.configErr = err
	return err == nil && *c != *a.engine.config
}

// takeOwn takes over what came of publishing this node.
func (a *agent) takeOwn(ctx context.Context, r acquisition) {
	a.acquireErr = r.err
	if r.err != nil {
		return
	}
	if a.own == nil || !slices.Equal(a.own.PodCIDRs, r.node.PodCIDRs) || a.own.PublicIP != r.node.PublicIP || a.own.PublicIPv6 != r.node.PublicIPv6 {
		a.memory.save(ctx, func(m *remembered) {
			m.PodCIDRs, m.PublicIP, m.PublicIPv6 = r.node.PodCIDRs, r.node.PublicIP, r.node.PublicIPv6
		})
		a.log.Info("published", "node", r.node.Name, "podCIDRs", r.node.PodCIDRs, "publicIP", r.node.PublicIP, "publicIPv6", r.node.PublicIPv6)
	}
	a.own, a.wishes, a.peers, a.announced = &r.node, r.node.Wishes, nil, false
}

// readLinks looks at the node's interfaces.
func (a *agent) readLinks(ctx context.Context) {
	links, err := a.host.Net.HostLinks(ctx)
	if err != nil {
		a.linkErr = err
		return
	}
	a.links, a.linkErr = links, nil
}

// pass compares and puts right once. It returns when to do so again at the latest.
func (a *agent) pass(ctx context.Context) time.Duration {
	faults := a.prepare()
	if len(faults) == 0 {
		a.yield(ctx)
		a.request(ctx)
		faults = a.owned()
	}
	next := slow
	if a.own != nil && a.config != nil && a.underlay.link != "" {
		faults = append(faults, a.program(ctx, &next)...)
	}
	a.conclude(ctx, faults)
	return next
}

// prepare finds out what is known of the network and the way to it. The faults
// keep pods from being attached; what works goes on.
func (a *agent) prepare() (faults []error) {
	switch {
	case a.snapshot == nil && a.registryErr != nil:
		return []error{fmt.Errorf("the registry was not heard yet: %w", a.registryErr)}
	case a.snapshot == nil:
		return []error{errors.New("the registry was not heard yet")}
	case a.config == nil:
		return []error{a.configErr}
	}
	if a.linkErr != nil {
		return []error{a.linkErr}
	}
	selection := a.set.underlay
	selection.wish(a.wishes)
	u, err := selection.choose(a.links, a.config.EnableIPv4, a.config.EnableIPv6, a.routeLink)
	if err == nil && a.config.Backend.Type == backendHostGW && (u.local4 != u.public4 || u.local6 != u.public6) {
		err = errors.New("backend host-gw: the public address is none of the interface's: nodes are each other's gateways")
	}
	if err != nil {
		return []error{err}
	}
	if u != a.underlay {
		a.log.Info("underlay", "interface", u.link, "mtu", u.mtu, "ipv4", u.local4, "ipv6", u.local6)
		a.underlay = u
	}
	return nil
}

// request has this node published as it is now, if it is not, or if the registry
// shows it otherwise.
func (a *agent) request(ctx context.Context) {
	want := a.record(ctx)
	listed := a.listed()
	altered := a.own != nil && a.repaired != a.snapshot && (listed == nil || !listed.Same(a.own))
	if altered {
		a.log.Info("the registry shows this node otherwise than it was published", "node", a.own.Name, "listed", listed != nil)
	}
	// What was not to be had may be free by now.
	denied := errors.Is(a.acquireErr, cluster.ErrNotAssigned) || errors.Is(a.acquireErr, cluster.ErrConflict)
	denied = denied && a.repaired != a.snapshot
	a.repaired = a.snapshot
	if a.asked != nil && a.asked.Same(&want) && !altered && !denied {
		return
	}
	a.asked = &want
	ask := want
	if listed == nil && a.own != nil && !a.engine.assigns && slices.IndexFunc(a.own.PodCIDRs, func(p netip.Prefix) bool { return !a.config.Fits(p) }) < 0 {
		ask.PodCIDRs = a.own.PodCIDRs // the record went: others may take them
	}
	put(a.publish, ask)
}

// sameWish tells whether a node is published as it was before, in whichever pod
// networks.
func sameWish(a, b cluster.Node) bool {
	a.PodCIDRs, b.PodCIDRs = nil, nil
	return a.Same(&b)
}

// record is what this node tells the others.
func (a *agent) record(ctx context.Context) cluster.Node {
	n := cluster.Node{Name: a.engine.node, BackendType: a.config.Backend.Type, BackendData: []byte("null")}
	data := func(v6 bool) []byte {
		if n.BackendType != backendVXLAN {
			return []byte("null")
		}
		return cluster.VTEP{VNI: a.config.Backend.VNI, MAC: hardware(a.vtepMAC(ctx, v6))}.JSON()
	}
	if a.config.EnableIPv4 {
		n.PublicIP, n.BackendData = a.underlay.public4, data(false)
	}
	if a.config.EnableIPv6 {
		n.PublicIPv6, n.BackendV6Data = a.underlay.public6, data(true)
	}
	return n
}

// owned tells what is wrong with what this node was given.
func (a *agent) owned() (faults []error) {
	switch err := a.acquireErr; {
	case a.own == nil && err != nil:
		return []error{fmt.Errorf("this node is not published: %w", err)}
	case a.own == nil:
		return []error{errors.New("this node is not published yet")}
	case errors.Is(err, cluster.ErrConflict):
		faults = append(faults, err)
	}
	for _, v6 := range []bool{false, true} {
		if _, ok := subnetOf(a.own, v6); !ok && (v6 && a.config.EnableIPv6 || !v6 && a.config.EnableIPv4) {
			faults = append(faults, fmt.Errorf("the registry assigned no %s pod network to node %q", familyName(v6), a.own.Name))
		}
	}
	return faults
}

// keepFaulty returns the next snapshot, with what the other nodes said in the
// one before where their records cannot be read now.
func keepFaulty(before, next *cluster.Snapshot, own string) *cluster.Snapshot {
	if before == nil || len(next.Faults) == 0 {
		return next
	}
	kept := *next
	kept.Nodes = slices.Clone(next.Nodes)
	for _, n := range before.Nodes {
		if _, faulty := next.Faults[n.Name]; faulty && n.Name != own {
			kept.Nodes = append(kept.Nodes, n)
		}
	}
	slices.SortFunc(kept.Nodes, func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	return &kept
}
