package process

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// ServeHTTP serves checks and metrics on addr until the returned function is called.
func ServeHTTP(ctx context.Context, addr string, h http.Handler, log *slog.Logger) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil && err != http.ErrServerClosed {
			log.Warn("checks and metrics are no longer served", "error", err)
		}
	}()
	return func() { _ = s.Close(); <-done }, nil
}
