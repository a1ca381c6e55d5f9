package agent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cnibox/cnibox/roles/cluster/process"
)

// loopTimeout is the time after which a loop without a reconciliation counts as stuck. The loop
// runs at least once per resyncInterval.
const loopTimeout = 3 * resyncInterval

// health serves checks for orchestrators. /healthz reports whether the loop is running, /readyz
// whether pods can be attached, and /peersz whether all peers are programmed. /metrics has metrics.
func (a *agent) health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", process.Metrics(a.writeMetrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if idle := time.Since(a.reporter.current.Load().finished); idle > loopTimeout {
			process.AnswerText(w, false, fmt.Sprintf("the agent's loop did not run for %s", idle.Round(time.Second)))
			return
		}
		process.AnswerText(w, true, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := a.reporter.current.Load()
		if !s.Ready {
			process.AnswerText(w, false, "not ready: "+s.Reason)
			return
		}
		process.AnswerText(w, true, fmt.Sprintf("ready: %d of %d peers", s.Peers.Programmed, s.Peers.Wanted))
	})
	mux.HandleFunc("GET /peersz", func(w http.ResponseWriter, _ *http.Request) {
		s := a.reporter.current.Load()
		text := fmt.Sprintf("%d of %d peers programmed", s.Peers.Programmed, s.Peers.Wanted)
		if s.RegistryError != "" {
			text += "; the registry cannot be read: " + s.RegistryError
		}
		known := s.IPv4 != nil || s.IPv6 != nil
		process.AnswerText(w, known && s.Peers.Programmed == s.Peers.Wanted, text)
	})
	return mux
}

// serveHealth serves health checks on addr until the returned function is called.
func (a *agent) serveHealth(ctx context.Context, addr string) (stop func(), err error) {
	stop, err = process.ServeHTTP(ctx, addr, a.health(), a.log)
	if err != nil {
		return nil, fmt.Errorf("listen on -healthz-port: %w", err)
	}
	return stop, nil
}
