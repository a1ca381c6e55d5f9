package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store/cluster"
)

// resyncInterval is the time between two complete comparisons with the kernel.
const resyncInterval = time.Minute

// startTime is the time after which a fault of a starting agent is worth a warning.
const startTime = 5 * time.Second

// agent keeps one node's pod network connected. The loop in run owns the fields, except where a
// field's comment says otherwise. It reads into knowledge, decide says what must be, and the other parts write that.
type agent struct {
	host     *roles.Host
	log      *slog.Logger
	registry *registryClient
	memory   memory
	// socket answers other programs of the node.
	socket *service.Server
	// ranges leases blocks of cluster-wide ranges.
	ranges *ranges.Keeper
	// policies enforces network policies. It is nil if the node enforces none. policiesKnown is closed when it has read them, and nil
	// after that.
	policies      *policy.Keeper
	policiesKnown <-chan struct{}
	// egress gives pods egress addresses. Its keeper is nil if the agent gives none.
	egress egressPart

	knowledge
	// updates carries the latest state of the registry.
	updates *cluster.Relay
	// unread is the time since which the registry cannot be read or has not answered.
	unread time.Time
	// received is the time of the first snapshot that is not programmed yet.
	received time.Time
	// freeMemory is true if a snapshot arrived since memory was last returned to the kernel.
	freeMemory bool

	publisher publisher
	recaller  recaller
	reporter  reporter
	families  [2]*family
	filter    *overlay.Filter
	// bridges requests that deleted bridges of containers are restored.
	bridges chan struct{}
	// formerErr names addresses of this node in other nodes' pod networks.
	formerErr error

	counters counters
	// datagrams are counted at two past times, the older one first.
	datagrams [2]datagrams
	// answers has the other nodes' answers through the tunnel.
	answers answers
	// leftOut are the logged entries of peers.left.
	leftOut map[leftOut]bool
	started time.Time
}

// run is the loop of the agent. Every event leads to a full comparison of the desired with the
// actual state, and to a repair of the difference. run ends with ctx, or returns true if the
// registry must be opened again.
func (a *agent) run(ctx context.Context, links *netops.LinkMonitor) (again bool) {
	a.readLinks(ctx)
	resync := time.Now().Add(resyncInterval)
	for {
		next := min(a.reconcile(ctx), time.Until(resync))
		timer, idle := time.NewTimer(next), a.memoryTimer()
		select {
		case <-ctx.Done():
		case <-a.updates.Changes():
			a.applyUpdate(a.updates.Take())
		case r := <-a.publisher.acquired:
			a.setOwn(ctx, r)
		case <-links.Changes():
			a.readLinks(ctx)
		case <-a.families[0].changes():
		case <-a.families[1].changes():
		case <-a.filter.Changes():
		case <-a.ranges.Changes():
		case <-a.egress.keeper.Changes():
		case <-a.policiesKnown:
			a.policiesKnown = nil
		case <-a.reporter.fileMonitor.changes():
			a.reporter.install.hasPlugins, a.reporter.install.hasNetwork = false, false
		case <-idle:
			debug.FreeOSMemory()
			a.freeMemory = false
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
		// Frequent events must not delay this.
		if now := time.Now(); !now.Before(resync) {
			resync = now.Add(resyncInterval)
			if a.resync(ctx) {
				return true
			}
		}
	}
}

// resync makes the next reconciliation compare everything with the kernel, because a notification
// may have been lost. It returns true if the registry must be opened again.
func (a *agent) resync(ctx context.Context) (again bool) {
	a.readLinks(ctx)
	a.recaller.unsaved = true // the last save may have failed
	a.reporter.install.hasNetwork = false
	a.countDatagrams()
	if a.key != (overlay.Secret{}) {
		if err := a.loadKey(ctx); err != nil { // 'agent rotate-key' may have run
			a.log.Warn("the agent uses the WireGuard key that it has", "error", err)
		}
	}
	for _, f := range a.families {
		if f.overlay != nil {
			f.overlay.Recheck()
		}
	}
	a.filter.Recheck()
	return a.configChanged()
}

// The memory for a snapshot of manyNodes nodes or more is returned to the kernel after
// freeMemoryDelay, and that for saving one after the save, because most of it is not needed again.
const (
	freeMemoryDelay = 2 * time.Second
	manyNodes       = 1000
)

// memoryTimer returns a channel that fires when the memory of a large snapshot can be returned. It
// returns nil if there is nothing to return.
func (a *agent) memoryTimer() <-chan time.Time {
	if !a.freeMemory || a.snapshot == nil || len(a.snapshot.Nodes) < manyNodes {
		return nil
	}
	return time.After(freeMemoryDelay)
}

// applyUpdate stores an update of the registry.
func (a *agent) applyUpdate(n cluster.Update) {
	switch {
	case n.Err == nil && n.Snapshot == nil:
		return // it came with the last one
	case n.Err != nil && a.registryErr == nil && a.snapshot != nil && !a.fromMemory:
		a.log.Warn("the registry cannot be read: the agent maintains the nodes that it knows", "registry", a.registry.name, "error", n.Err)
	case n.Err == nil && a.registryErr != nil:
		a.log.Warn("the registry can be read", "registry", a.registry.name)
	}
	if n.Err == nil {
		a.unread = time.Time{}
	} else if a.unread.IsZero() {
		a.unread = time.Now()
	}
	a.registryErr = n.Err
	if n.Snapshot == nil {
		return
	}
	if a.received.IsZero() {
		a.received = n.Since
	}
	own := a.registry.node
	if a.own != nil {
		own = a.own.Name
	}
	a.overrides = n.Snapshot.Overrides
	a.freeMemory, a.fromMemory = true, false
	a.recaller.unsaved, a.recaller.saved = true, nil
	a.snapshot = keepLastGood(a.snapshot, n.Snapshot, own)
	if a.registry.config != nil {
		a.setConfig(a.registry.config)
		return
	}
	a.setConfig(n.Snapshot.Config)
	for name, err := range n.Snapshot.Faults {
		if isConfig(name) { // the snapshot has the last valid configuration
			a.configErr = err
		}
	}
}

// isConfig reports whether a registry's fault concerns the configuration. No node name begins with
// a slash.
func isConfig(name string) bool { return strings.HasPrefix(name, "/") }

// setConfig stores a configuration. An invalid one is reported, and the last valid one stays in
// force.
func (a *agent) setConfig(c *cluster.Config) {
	var err error
	if c == nil {
		err = errors.New("the registry holds no network configuration")
	} else {
		c = a.set.withFlags(c)
	}
	if err == nil && a.config != nil {
		if _, overlap := a.chooseUnderlay(c, a.routeLink); errors.Is(overlap, errContainsNodes) {
			err = overlap
		}
	}
	a.configErr = err
	if err == nil && (a.config == nil || *a.config != *c) {
		a.config = c
	}
}

// configChanged reports whether the configuration is a file whose content has changed. An invalid
// file leaves the last configuration in force.
func (a *agent) configChanged() bool {
	if a.registry.config == nil {
		return false
	}
	c, err := readNetConf(a.set.netConf, func(string) {})
	a.configErr = err
	return err == nil && *c != *a.registry.config
}

// readLinks reads the node's interfaces. After the loss of an address it closes the registry's
// connections from that address, so that a new address is published at once. After the loss of a
// bridge of containers it requests its restoration.
func (a *agent) readLinks(ctx context.Context) {
	links, err := a.host.Net.HostLinks(ctx)
	if err != nil {
		a.linkErr = err
		a.counters.addError(err)
		return
	}
	before := a.links
	a.links, a.linkErr = links, nil
	if slices.ContainsFunc(before, func(l netops.HostLink) bool { return l.Alias == attachment.SharedAlias && !hasLink(links, l.Index) }) {
		sendLatest(a.bridges, struct{}{})
	}
	if r, ok := a.registry.Registry.(cluster.Remote); ok {
		r.CloseFrom(func(addr netip.Addr) bool { return hasAddress(before, addr) && !hasAddress(links, addr) })
	}
}

func hasLink(links []netops.HostLink, index int) bool {
	return slices.ContainsFunc(links, func(l netops.HostLink) bool { return l.Index == index })
}

func hasAddress(links []netops.HostLink, addr netip.Addr) bool {
	return slices.ContainsFunc(links, func(l netops.HostLink) bool { return has(&l, addr) })
}

// reconcile compares the desired with the actual state once and repairs the difference. It returns
// the longest time to wait until the next call.
func (a *agent) reconcile(ctx context.Context) time.Duration {
	a.recall(ctx)
	a.readSaved(ctx)
	d := a.decide(a.routeLink)
	a.adopt(ctx, &d)
	faults, next := d.faults, resyncInterval
	if d.programs {
		failed := a.program(ctx, &d, &next)
		if faults = append(faults, failed...); len(failed) == 0 && !a.received.IsZero() {
			a.counters.addProgramming(time.Since(a.received))
			a.received = time.Time{}
		}
	}
	a.publishState(ctx, faults)
	a.setEgressView(ctx)
	a.remember()
	if a.reporter.quiet {
		next = min(next, time.Until(a.started.Add(startTime)))
	}
	return next
}

// readSaved reads what the next decision needs of keep.db, and has random MAC addresses ready for it.
func (a *agent) readSaved(ctx context.Context) {
	for i, mac := range a.spareMACs {
		if mac == "" {
			a.spareMACs[i] = newMAC()
		}
	}
	if a.config != nil && a.config.Backend.Type == backendWireGuard && a.key == (overlay.Secret{}) {
		a.keyErr = a.loadKey(ctx)
	}
	if a.needsMAC(false) || a.needsMAC(true) {
		a.savedMACs = a.memory.load(ctx).MACs
	}
}

// adopt takes over the choices of a decision, saves its new MAC addresses, and requests that this node is published.
func (a *agent) adopt(ctx context.Context, d *decision) {
	before := a.choices
	a.choices = d.choices
	if u := &a.underlay; *u != before.underlay {
		a.recaller.unsaved = true
		a.log.Info("underlay", "interface", u.link, "mtu", u.mtu, "ipv4", u.local4, "ipv6", u.local6)
	}
	for _, m := range d.macs {
		if m.other != nil {
			a.log.Warn("another node has the same VTEP MAC address: this node changes its own", "node", m.other.Name, "mac", m.mac)
		}
		a.memory.save(ctx, func(r *remembered) {
			if r.MACs == nil {
				r.MACs = map[string]string{}
			}
			r.MACs[m.device] = m.mac
		})
	}
	if d.altered {
		a.log.Info("the registry's record of this node differs from the published one", "node", a.own.Name, "listed", a.ownRecord() != nil)
	}
	if d.publish != nil {
		sendLatest(a.publisher.asked, *d.publish)
	}
	if a.peers != before.peers {
		a.logLeftOut()
	}
}

// keepLastGood returns the next snapshot. It takes the previous record of each other node whose
// record cannot be read now.
func keepLastGood(before, next *cluster.Snapshot, own string) *cluster.Snapshot {
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
	sorting.Func(kept.Nodes, func(a, b *cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	return &kept
}
