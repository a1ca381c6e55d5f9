package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// gcPercent is GOGC's default in an agent. Most of a large cluster's memory is allocated once, so more
// frequent collections cost little.
const gcPercent = 20

// run runs the daemon until ctx ends. The kernel's state stays after that.
func run(ctx context.Context, h *roles.Host, args []string, demands func(file []byte) []store.RangeDemand) error {
	set, err := parseFlags(h.Role, h.Program, args, h.Env)
	if err != nil {
		return err
	}
	set.demands = demands
	for _, name := range set.ignored {
		h.Log.Warn("a flag has no effect", "flag", name)
	}
	if process.Getenv(h.Env, "GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	for _, name := range set.cniPlugins {
		if set.cniBinDir != "" && !slices.Contains(h.Types, name) {
			return roles.Usagef("-cni-plugins: %q is not a plugin: 'cnibox list' lists them", name)
		}
	}
	set.setDefaultPaths(h.Store)
	if set.uninstall {
		unlock, err := service.Lock(h.Store.AgentSocket() + ".lock")
		if err != nil {
			return err
		}
		defer unlock()
		return uninstall(ctx, h, set)
	}
	s, stop, err := service.Start(ctx, h.Store.AgentSocket(), h.Log)
	if err != nil {
		return err
	}
	defer stop()
	if set.rangesOnly {
		return keepRanges(ctx, h, set, s)
	}
	defer s.Handle(map[string]service.Handler{service.Status: func(context.Context, *service.Request) (any, error) { return nil, errStarting }})()
	for again := true; again; {
		if again, err = serve(ctx, h, set, s); err != nil {
			return err
		}
	}
	return nil
}

// errStarting is the status while the registry is opened.
var errStarting = errors.New("the agent opens its registry")

// setDefaultPaths sets the paths that are in the run directory by default.
func (s *settings) setDefaultPaths(in *store.Store) {
	if s.overlayFile == "" {
		s.overlayFile = in.OverlayPath()
	}
}

// newAgent returns an agent without any state.
func newAgent(h *roles.Host, set *settings) *agent {
	now := time.Now()
	return &agent{
		host: h, log: h.Log, memory: memory{h},
		knowledge: knowledge{set: set, choices: choices{known: &verdicts{}}},
		updates:   cluster.NewRelay(),
		publisher: newPublisher(),
		recaller:  recaller{host: h, saves: make(chan clusterMemory, 1)},
		reporter:  reporter{log: h.Log, started: now, install: newInstallation(set, h.Executable), files: openFiles(set.overlayFile, set.subnetEnv, h.Store.BootID())},
		bridges:   make(chan struct{}, 1),
		started:   now,
		unread:    now,
		counters:  counters{repairs: map[string]int{}, errnos: map[string]int{}},
		families:  [2]*family{{}, {v6: true}},
	}
}

// serve runs an agent with the present flags and files. It returns true if the files changed.
func serve(ctx context.Context, h *roles.Host, set *settings, s *service.Server) (again bool, err error) {
	a := newAgent(h, set)
	a.socket = s
	a.registry, err = set.open(ctx, h, set.withCurrentAddresses(ctx, h, a.memory.load(ctx)))
	if err != nil {
		return false, fmt.Errorf("open the registry: %w", err)
	}
	defer func() { err = errors.Join(err, a.registry.Close()) }()
	a.self = a.registry.identity()
	a.ranges = newKeeper(ctx, h, a.registry, set, s)
	a.countDatagrams()
	a.countDatagrams() // as the older count too
	a.reporter.current.Store(a.buildState(errors.New("starting")))
	a.filter, err = overlay.OpenFilter(h.Net) //nolint:contextcheck // it listens until Close
	if err != nil {
		return false, err
	}
	defer a.filter.Close() //nolint:errcheck // nothing is written by it
	a.reporter.fileMonitor, err = openFileMonitor(append(set.paths(), set.overlayFile, set.subnetEnv)...)
	if err != nil {
		return false, err
	}
	defer a.reporter.fileMonitor.close()
	links, err := h.Net.OpenLinkMonitor() //nolint:contextcheck // it listens until Close
	if err != nil {
		return false, err
	}
	defer links.Close() //nolint:errcheck // it only listens
	defer a.closeFamilies()
	keepAttachments, err := watchAttachments(ctx, h, a.bridges, &a.counters) //nolint:contextcheck // it listens until it ends
	if err != nil {
		return false, err
	}
	a.policies, err = a.openPolicies(ctx)
	if err != nil {
		return false, err
	}
	a.egress.keeper, err = a.openEgress() //nolint:contextcheck // it listens until Close
	if err != nil {
		return false, err
	}
	defer a.egress.close()

	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	if a.policies != nil {
		a.policiesKnown = a.policies.Known()
		running.Go(func() { a.policies.Run(ctx) })
	}
	if addr := set.healthAddr(); addr != "" {
		end, err := a.serveHealth(ctx, addr)
		if err != nil {
			return false, err
		}
		defer end()
	}
	defer s.Handle(map[string]service.Handler{service.Status: a.writeStatus})()
	running.Go(func() { a.keepRates(ctx) })
	running.Go(func() { _ = a.registry.Watch(ctx, a.updates) })
	running.Go(func() { keepAttachments(ctx) })
	running.Go(func() { a.collect(ctx, time.NewTicker(collectInterval).C) })
	if a.policies == nil {
		running.Go(func() { a.warnPolicies(ctx) })
	}
	running.Go(func() { a.runEgress(ctx) })
	running.Go(func() { a.ranges.Run(ctx) })
	if set.probe {
		running.Go(func() { a.probePeers(ctx) })
	}
	running.Go(func() { a.recaller.run(ctx) })
	running.Go(func() { a.publisher.run(ctx, a.registry, h.Log) })
	h.Log.Info("the agent connects this node's pods with those of other nodes until it is stopped; 'cnibox agent status' shows them", "node", a.registry.node, "registry", a.registry.name)
	return a.run(ctx, links), nil
}

// restoreRetry is the time after which a failed restoration of bridges is tried again.
const restoreRetry = 5 * time.Second

// watchAttachments restores what attachments need and another program deleted: rules, and bridges
// after a request. The returned function does so until its context ends. It has sockets of its own,
// which are opened here, in the namespace of the calling thread.
func watchAttachments(ctx context.Context, h *roles.Host, bridges <-chan struct{}, count *counters) (run func(context.Context), err error) {
	own := *h
	own.Net = h.Net.Clone()
	monitor, err := own.Net.OpenRulesMonitor() //nolint:contextcheck // it listens until Close
	if err != nil {
		return nil, errors.Join(err, own.Net.Close())
	}
	attempt := func(ctx context.Context, what string, restore func(context.Context, *roles.Host) (int, error)) bool {
		n, err := restore(ctx, &own)
		count.addRepairs("attachment "+what, n)
		count.addError(err)
		if err != nil && ctx.Err() == nil {
			h.Log.Warn("restore the "+what+" of attachments", "error", err)
		}
		return err == nil
	}
	restoreRules := func(ctx context.Context, h *roles.Host) (int, error) { return recovery.RestoreRules(ctx, h, true) }
	attempt(ctx, "rules", restoreRules)
	return func(ctx context.Context) {
		defer own.Net.Close() //nolint:errcheck // nothing is deleted
		defer monitor.Close()
		again := time.After(0)
		for {
			select {
			case <-ctx.Done():
				return
			case <-monitor.Changes():
				attempt(ctx, "rules", restoreRules)
				continue
			case <-bridges:
			case <-again:
			}
			again = nil
			if !attempt(ctx, "bridges", recovery.RestoreBridges) {
				again = time.After(restoreRetry)
			}
		}
	}, nil
}

// closeFamilies closes the sockets. The kernel's state stays.
func (a *agent) closeFamilies() {
	for _, f := range a.families {
		if f.overlay != nil {
			_ = f.overlay.Close()
		}
	}
}

// routeLink returns the name of the interface of the route to an address.
func (a *agent) routeLink(to netip.Addr) (string, error) {
	return a.host.Net.RouteLink(context.Background(), nil, to)
}
