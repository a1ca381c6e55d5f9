package agent

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// At most maxAnswers clients are served at a time, each for answerTime at most. A client that does
// not read cannot delay others for longer.
const (
	maxAnswers = 64
	answerTime = 5 * time.Second
)

// serveStatus serves clients until ctx ends. The socket stays open.
func (a *agent) serveStatus(ctx context.Context) {
	var answers sync.WaitGroup
	defer answers.Wait()
	free := make(chan struct{}, maxAnswers)
	a.socket.Serve(ctx, func(c net.Conn) {
		free <- struct{}{}
		answers.Go(func() { a.answer(ctx, c); <-free })
	})
}

func (a *agent) answer(ctx context.Context, c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(answerTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	if err := errors.Join(a.current.Load().write(ctx, c), c.Close()); err != nil {
		a.log.Debug("status", "error", err)
	}
}
