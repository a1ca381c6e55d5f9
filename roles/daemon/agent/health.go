package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// stuck is how long after a pass the loop counts as dead: it wakes every minute.
const stuck = 3 * slow

// health answers /healthz and /readyz as orchestrators ask them. The first tells
// whether the loop goes round, the second whether pods can be attached.
func (a *agent) health() http.Handler {
	answer := func(w http.ResponseWriter, ok bool, text string) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = fmt.Fprintln(w, text)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if idle := time.Since(a.shown.Load().beat); idle > stuck {
			answer(w, false, fmt.Sprintf("the agent did nothing for %s", idle.Round(time.Second)))
			return
		}
		answer(w, true, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := a.shown.Load()
		if !s.Ready {
			answer(w, false, "not ready: "+s.Reason)
			return
		}
		answer(w, true, fmt.Sprintf("ready: %d of %d peers", s.Peers.Programmed, s.Peers.Wanted))
	})
	return mux
}

// serveHealth answers on an address until the returned function is called.
func (a *agent) serveHealth(ctx context.Context, addr string) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("answer -healthz-port: %w", err)
	}
	s := &http.Server{Handler: a.health(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil && err != http.ErrServerClosed {
			a.log.Warn("health is answered no more", "error", err)
		}
	}()
	return func() { _ = s.Close(); <-done }, nil
}
