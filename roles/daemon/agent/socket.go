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

// socket is where status is asked for, as long as the process lives. Its lock is
// what keeps a second agent from this node.
type socket struct {
	path string
	// listener may be loaded by anybody; the rest is the loop's.
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

// reopen makes the socket anew, with its lock, if somebody removed it.
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
	old.SetUnlinkOnClose(false) // the path leads to the new one
	return old.Close()
}

func (s *socket) close() {
	_ = s.listener.Load().Close() // the process ends
	s.unlock()
}

// Nobody waits on those who do not read: so many are answered side by side, each
// within that time.
const (
	maxAnswers = 64
	answerTime = 5 * time.Second
)

// serveStatus answers whoever connects until ctx ends. The listener stays open.
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
			a.log.Warn("status is answered no more", "error", err)
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
	if err := errors.Join(a.shown.Load().write(c), c.Close()); err != nil {
		a.log.Debug("status", "error", err)
	}
}
