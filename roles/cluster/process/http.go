package process

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/cnibox/cnibox/internal/metrics"
)

// ServeHTTP serves checks and metrics on addr until the returned function is called.
func ServeHTTP(ctx context.Context, addr string, h http.Handler, log *slog.Logger) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return Serve(l, h, log), nil
}

// Serve answers the clients of a listener until the returned function is called.
func Serve(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil && err != http.ErrServerClosed {
			log.Warn("HTTP is no longer served", "address", l.Addr().String(), "error", err)
		}
	}()
	return func() { _ = s.Close(); <-done }
}

// AnswerText answers a check with a text. The status is 503 unless ok.
func AnswerText(w http.ResponseWriter, ok bool, text string) {
	setType(w, "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprintln(w, text)
}

// metricsTime bounds the wait for metrics, for instance for a locked file.
const metricsTime = 5 * time.Second

// Metrics returns a handler that answers with the metrics that collect writes.
func Metrics(collect func(context.Context, *metrics.Writer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, stop := context.WithTimeout(r.Context(), metricsTime)
		defer stop()
		out := &metrics.Writer{}
		collect(ctx, out)
		setType(w, metrics.ContentType)
		_, _ = w.Write(out.Bytes())
	}
}

func setType(w http.ResponseWriter, kind string) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
