package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/netops/overlay"
)

// counters are what the agent counted since its start. They may be used concurrently.
type counters struct {
	mu sync.Mutex
	// repairs has numbers of objects by kind, errnos those of the kernel's errors by name.
	repairs, errnos map[string]int
	programming     metrics.Histogram
	collected       int
}

func (c *counters) addRepairs(kind string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.repairs[kind] += n
	}
}

// addError counts an error of the kernel. It ignores other errors.
func (c *counters) addError(err error) {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		c.addErrno(errno, 1)
	}
}

func (c *counters) addErrno(errno syscall.Errno, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errnos[unix.ErrnoName(errno)] += n
}

func (c *counters) addReport(r *overlay.Report) {
	for kind, n := range r.Repaired {
		c.addRepairs(kind, n)
	}
	for errno, n := range r.Refused {
		c.addErrno(errno, n)
	}
}

func (c *counters) addProgramming(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programming.Observe(took)
}

func (c *counters) addCollected(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collected += n
}

// writeMetrics writes the metrics of the agent and of the node's state.
func (a *agent) writeMetrics(ctx context.Context, w *metrics.Writer) {
	s := a.reporter.current.Load()
	w.Gauge("cnibox_build_info", "Always 1.", "version").Add(1, a.host.Program)
	w.Gauge("cnibox_agent_ready", "1 if pods can be attached, else 0.").Add(oneIf(s.Ready))
	perFamily := func(f metrics.Family, value func(*overlay.Report) int) {
		for i, o := range s.overlays {
			if o != nil {
				f.Add(float64(value(&s.reports[i])), familyName(i == 1))
			}
		}
	}
	perFamily(w.Gauge("cnibox_peers_wanted", "Other nodes whose pod network must be reachable.", "family"), func(r *overlay.Report) int { return r.Wanted })
	perFamily(w.Gauge("cnibox_peers_programmed", "Wanted peers that are completely in the kernel.", "family"), func(r *overlay.Report) int { return r.Programmed })
	perFamily(w.Gauge("cnibox_peers_failed", "Wanted peers that the kernel or the agent refused.", "family"), func(r *overlay.Report) int { return r.Failed })
	w.Gauge("cnibox_peers_left_out", "Records of nodes that are not wanted, for example because of another backend. 'cnibox agent status' has the reasons.").Add(float64(len(s.left)))
	perFamily(w.Counter("cnibox_lost_notifications_total", "How often notifications of the kernel were lost. The agent read the kernel again each time.", "family"), func(r *overlay.Report) int { return r.Losses })
	silent := w.Gauge("cnibox_peer_unheard", "1 for each node that does not answer this node through the tunnel.", "peer")
	for _, u := range a.answers.silent() {
		silent.Add(1, u.Peer)
	}
	loss := w.Gauge("cnibox_peer_loss_ratio", "Share of the last 64 requests to a node through the tunnel that it did not answer. Absent if it answered all.", "peer", "family")
	for i := range s.overlays {
		percent := a.answers.loss(i)
		for _, peer := range slices.Sorted(maps.Keys(percent)) {
			loss.Add(float64(percent[peer])/100, peer, familyName(i == 1))
		}
	}
	var age time.Duration
	if !s.unread.IsZero() {
		age = time.Since(s.unread)
	}
	if a.policies != nil {
		a.policies.WriteMetrics(ctx, w)
	}
	a.egress.keeper.WriteMetrics(w)
	w.Gauge("cnibox_registry_age_seconds", "Time since the registry could be read last, 0 while it can.").Add(age.Seconds())

	a.counters.mu.Lock()
	w.Histogram("cnibox_program_duration_seconds", "Time from the arrival of a changed list of nodes until the kernel has it.").AddHistogram(&a.counters.programming)
	f := w.Counter("cnibox_repairs_total", "Objects that another program removed or changed and that the agent restored.", "kind")
	for _, kind := range slices.Sorted(maps.Keys(a.counters.repairs)) {
		f.Add(float64(a.counters.repairs[kind]), kind)
	}
	f.Add(float64(s.restored), "packet filter")
	f = w.Counter("cnibox_netlink_errors_total", "Requests of the agent that the kernel refused. Expected answers, such as ENOENT for an absent object that was to be removed, are not counted.", "errno")
	for _, errno := range slices.Sorted(maps.Keys(a.counters.errnos)) {
		f.Add(float64(a.counters.errnos[errno]), errno)
	}
	w.Counter("cnibox_collected_attachments_total", "Attachments of containers that did not exist and that no runtime had deleted.").Add(float64(a.counters.collected))
	a.counters.mu.Unlock()

	err := a.host.Store.WriteMetrics(ctx, w)
	if err != nil {
		a.log.Debug("cannot read the state for metrics", "error", err)
	}
	w.Gauge("cnibox_state_readable", "1 if the node's state could be read for this answer, else 0.").Add(oneIf(err == nil))
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
