package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
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

// At most MaxAnswers clients of Answer are served at a time, each for answerTime at most. A client that does not read cannot
// delay others for longer.
const (
	MaxAnswers = 64
	answerTime = 5 * time.Second
)

// Answer writes an answer to each client with write until ctx ends. The socket stays open.
func (s *Socket) Answer(ctx context.Context, log *slog.Logger, write func(context.Context, io.Writer) error) {
	var answers sync.WaitGroup
	defer answers.Wait()
	free := make(chan struct{}, MaxAnswers)
	s.Serve(ctx, func(c net.Conn) {
		free <- struct{}{}
		answers.Go(func() {
			_ = c.SetDeadline(time.Now().Add(answerTime))
			defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
			if err := errors.Join(write(ctx, c), c.Close()); err != nil {
				log.Debug("status", "error", err)
			}
			<-free
		})
	})
}

// ErrAbsent means that no process listens on a socket.
var ErrAbsent = errors.New("no process listens")

// Ask connects to the socket of a daemon and calls talk with the connection, which fails when ctx ends.
func Ask(ctx context.Context, path string, talk func(net.Conn) error) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w on %q", ErrAbsent, path)
	}
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // all was read, or is lost
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	err = talk(c)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// Close closes the socket and releases the lock.
func (s *Socket) Close() {
	if l := s.listener.Load(); l != nil {
		_ = l.Close() // the process or its agent ends
	}
	s.unlock()
}
