package agent

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/roles/daemon/process"
)

// socket is the Unix socket for status, which exists as long as the process. Its lock prevents a
// second agent on this node.
type socket struct {
	path string
	// Every goroutine may load listener. The loop owns the other fields.
	listener atomic.Pointer[net.UnixListener]
	unlock   func()
}

func openSocket(path string) (*socket, error) {
	l, unlock, err := process.Listen(path)
	if err != nil {
		return nil, err
	}
	s := &socket{path: path, unlock: unlock}
	s.listener.Store(l)
	return s, nil
}

// reopen makes the socket and its lock again if the file was removed.
func (s *socket) reopen() error {
	if !isGone(s.path) {
		return nil
	}
	s.unlock()
	l, unlock, err := process.Listen(s.path)
	if err != nil {
		s.unlock = func() {}
		return err
	}
	s.unlock = unlock
	old := s.listener.Swap(l)
	old.SetUnlinkOnClose(false) // the path belongs to the new socket
	return old.Close()
}

func (s *socket) close() {
	_ = s.listener.Load().Close() // the process ends
	s.unlock()
}

// At most maxAnswers clients are served at a time, each for answerTime at most. A client that does
// not read cannot delay others for longer.
const (
	maxAnswers = 64
	answerTime = 5 * time.Second
)

// serveStatus serves clients until ctx ends. The listener stays open.
func (a *agent) serveStatus(ctx context.Context) {
	var answers sync.WaitGroup
	defer answers.Wait()
	free := make(chan struct{}, maxAnswers)
	defer context.AfterFunc(ctx, func() { _ = a.socket.listener.Load().SetDeadline(time.Now()) })()
	l := a.socket.listener.Load()
	_ = l.SetDeadline(time.Time{})
	for {
		c, err := l.Accept()
		switch now := a.socket.listener.Load(); {
		case err == nil:
			free <- struct{}{}
			answers.Go(func() { a.answer(ctx, c); <-free })
		case ctx.Err() != nil:
			return
		case now == l:
			a.log.Warn("status is no longer served", "error", err)
			return
		default:
			l = now
		}
	}
}

func (a *agent) answer(ctx context.Context, c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(answerTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	if err := errors.Join(a.current.Load().write(ctx, c), c.Close()); err != nil {
		a.log.Debug("status", "error", err)
	}
}
