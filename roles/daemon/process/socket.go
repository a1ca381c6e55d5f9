package process

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// acceptDelay is the delay after a failed accept, for example because the process has too many open files.
const acceptDelay = 100 * time.Millisecond

// Accept calls fn with each client until l is closed or its deadline passes.
func Accept(l net.Listener, fn func(net.Conn)) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			fn(c)
		case errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded):
			return
		default:
			<-time.After(acceptDelay)
		}
	}
}

// Socket is a Unix socket with a lock, see Listen. It is made again after another program deleted its file.
type Socket struct {
	path string
	// Every goroutine may load listener, which is nil until Open succeeds. One goroutine owns unlock.
	listener atomic.Pointer[net.UnixListener]
	unlock   func()
}

// NewSocket returns a socket that is not open.
func NewSocket(path string) *Socket { return &Socket{path: path, unlock: func() {}} }

// Open makes the socket and its lock, unless it is open and has its file.
func (s *Socket) Open() error {
	old := s.listener.Load()
	if _, err := os.Lstat(s.path); old != nil && err == nil {
		return nil
	}
	s.unlock()
	s.unlock = func() {}
	l, unlock, err := Listen(s.path)
	if err != nil {
		return err
	}
	s.unlock = unlock
	s.listener.Store(l)
	if old == nil {
		return nil
	}
	old.SetUnlinkOnClose(false) // the path belongs to the new socket
	return old.Close()
}

// Serve calls fn with each client of the open socket until ctx ends or the socket is closed. The socket stays open.
func (s *Socket) Serve(ctx context.Context, fn func(net.Conn)) {
	_ = s.listener.Load().SetDeadline(time.Time{}) // an earlier Serve set it
	defer context.AfterFunc(ctx, func() { _ = s.listener.Load().SetDeadline(time.Now()) })()
	var last *net.UnixListener
	for l := s.listener.Load(); l != last && ctx.Err() == nil; l = s.listener.Load() {
		last = l
		Accept(l, fn)
	}
}

// Close closes the socket and releases the lock.
func (s *Socket) Close() {
	if l := s.listener.Load(); l != nil {
		_ = l.Close() // the process or its agent ends
	}
	s.unlock()
}
