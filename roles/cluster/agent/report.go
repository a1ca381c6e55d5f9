package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/roles/call/plugindir"
)

// reporter tells others what the agent's state is: CNI calls by files, the container runtime by the network's file, clients of status and
// health, and the log.
type reporter struct {
	log *slog.Logger
	// current is the last reported state. Every goroutine may load it.
	current     atomic.Pointer[agentState]
	files       files
	install     *installation
	fileMonitor *fileMonitor
	// reason is the last logged reason. A repeated reason is not logged. quiet is true if it was
	// logged for debugging only, because the agent was starting.
	reason   string
	quiet    bool
	started  time.Time
	wasReady bool
	// warned are the last logged warnings.
	warned []string
}

// report places the network if the state is ready, logs what has changed, and makes the state available.
func (r *reporter) report(ctx context.Context, s *agentState) {
	if s.Ready {
		if err := r.install.place(r.logChange); err != nil {
			s.Ready, s.Reason = false, err.Error()
		}
	}
	r.logWarnings(s.Warnings)
	r.fileMonitor.addWatches()
	quiet := s.Reason != "" && !r.wasReady && time.Since(r.started) < startTime
	if s.Reason != r.reason || r.quiet && !quiet {
		level := slog.LevelWarn
		if quiet {
			level = slog.LevelInfo
		}
		r.reason, r.quiet = s.Reason, quiet
		if s.Reason != "" {
			r.log.Log(ctx, level, "there are faults", "ready", s.Ready, "reason", s.Reason)
		} else {
			r.log.Info("ready", "peers", s.Peers.Wanted)
		}
	}
	r.current.Store(s)
	r.wasReady = r.wasReady || s.Ready
}

// logWarnings logs the warnings when they change.
func (r *reporter) logWarnings(texts []string) {
	if slices.Equal(texts, r.warned) {
		return
	}
	r.warned = texts
	if len(texts) > 0 {
		r.log.Warn("settings of the node are incomplete", "reason", strings.Join(texts, "; "))
	} else {
		r.log.Info("settings of the node are complete")
	}
}

// logChange logs a change of the plugins or the network.
func (r *reporter) logChange(c plugindir.Change) {
	if c.Action != "kept" {
		r.log.Info("installation: "+c.Action, "name", c.Name, "replaces", c.Replaces)
	}
}
