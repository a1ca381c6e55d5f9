package service

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Handler answers a request with one value, or nil, after the lines that it writes with Request.Line. It returns when ctx ends.
type Handler func(ctx context.Context, r *Request) (answer any, err error)

// Server answers the requests to one socket, which is made again after another program deleted its file.
type Server struct {
	path string
	log  *slog.Logger
	// clients, requestTime and answerTime are the constants, but in tests.
	clients                 int
	requestTime, answerTime time.Duration

	// mu protects what follows. listener is nil until Open succeeds. file is what it has made.
	mu       sync.Mutex
	listener listener
	file     os.FileInfo
	unlock   func()
	fault    error
	// closed is true when Open makes no socket any more.
	closed bool
	// parts are in the order of Handle. The last one with a name answers.
	parts []*part
}

// listener is a *net.UnixListener.
type listener interface {
	net.Listener
	SetUnlinkOnClose(unlink bool)
}

// part are handlers that begin and end together.
type part struct {
	handlers map[string]Handler
	ended    context.Context //nolint:containedctx // it ends all that runs
	running  sync.WaitGroup
}

// New returns a server without a socket.
func New(path string, log *slog.Logger) *Server {
	return &Server{path: path, log: log, clients: maxClients, requestTime: requestTime, answerTime: answerTime, unlock: func() {}}
}

// Start opens a socket and answers its clients until stop is called, or ctx ends and stop is called.
func Start(ctx context.Context, path string, log *slog.Logger) (s *Server, stop func(), err error) {
	s = New(path, log)
	stop, err = s.start(ctx)
	return s, stop, err
}

func (s *Server) start(ctx context.Context) (stop func(), err error) {
	if err := s.Open(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	return func() { cancel(); running.Wait(); s.Close() }, nil
}

// Handle answers requests by their names until end is called, which returns when all handlers have.
func (s *Server) Handle(handlers map[string]Handler) (end func()) {
	ended, cancel := context.WithCancel(context.Background())
	p := &part{handlers: handlers, ended: ended}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = append(s.parts, p)
	return func() {
		s.mu.Lock()
		s.parts = slices.DeleteFunc(s.parts, func(one *part) bool { return one == p })
		s.mu.Unlock()
		cancel()
		p.running.Wait()
	}
}

// begin returns the handler of a name. Its part ends after running.Done.
func (s *Server) begin(name string) (h Handler, p *part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.parts) {
		if h := p.handlers[name]; h != nil {
			p.running.Add(1)
			return h, p
		}
	}
	return nil, nil
}

// Run answers until ctx ends, and then closes the open socket. The lock stays until Close.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.keep(ctx) })
	free := make(chan struct{}, s.clients)
	for ctx.Err() == nil {
		c, err := s.accept()
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(acceptDelay):
			}
			continue
		}
		select {
		case free <- struct{}{}:
			running.Go(func() { s.serve(ctx, c); <-free })
		case <-ctx.Done():
			_ = c.Close()
		}
	}
}

// keep makes the socket's file again if it was deleted, until ctx ends. Then it closes the socket.
func (s *Server) keep(ctx context.Context) {
	tick := time.NewTicker(checkTime)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			s.close()
			return
		case <-tick.C:
		}
		text := ""
		if err := s.Open(); err != nil {
			text = err.Error()
		}
		if text != last && text != "" {
			s.log.Warn("the daemon cannot be asked", "error", text)
		}
		last = text
	}
}

// accept returns the next client. One that waited at a closed socket is lost.
func (s *Server) accept() (net.Conn, error) {
	for {
		s.mu.Lock()
		l := s.listener
		s.mu.Unlock()
		c, err := l.Accept()
		s.mu.Lock()
		replaced := l != s.listener
		s.mu.Unlock()
		if err == nil || !replaced {
			return c, err
		}
	}
}

// serve answers a client.
func (s *Server) serve(ctx context.Context, c net.Conn) {
	defer c.Close() //nolint:errcheck // the client has its answer, or is gone
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	_ = c.SetReadDeadline(time.Now().Add(s.requestTime))
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now().Add(graceTime)) })()
	r := &Request{conn: c, ctx: ctx, answerTime: s.answerTime}
	line, err := bufio.NewReader(io.LimitReader(c, MaxRequest)).ReadBytes('\n')
	if err != nil {
		return // it sent no whole request
	}
	name, err := r.parse(line)
	if err != nil {
		r.end(nil, err)
		return
	}
	h, p := s.begin(name)
	if h == nil {
		_ = r.write(frame{End: true, Absent: true}) // the client may be gone
		return
	}
	defer p.running.Done()
	defer context.AfterFunc(p.ended, stop)() //nolint:contextcheck // ctx ends with either
	r.end(s.call(ctx, h, r, name))
}

// call calls a handler. A fault in one does not end the others.
func (s *Server) call(ctx context.Context, h Handler, r *Request, name string) (answer any, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the daemon has a fault, which its log describes: %v", fault)
			s.log.Error("a request has met a fault", "request", name, "fault", fault, "stack", string(debug.Stack()))
		}
	}()
	return h(ctx, r)
}

// Pass passes a request on to the goroutine that receives from to, and waits until it has sent an answer to done, which has room for it.
func Pass[R, A any](ctx context.Context, to chan<- R, r R, done <-chan A) (answer A, err error) {
	select {
	case to <- r:
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	select {
	case answer = <-done:
		return answer, nil
	case <-ctx.Done():
	}
	select {
	case answer = <-done: // it may be what ended ctx
		return answer, nil
	default:
		return answer, ctx.Err()
	}
}

// Request is what a client asks.
type Request struct {
	args json.RawMessage
	conn net.Conn
	ctx  context.Context //nolint:containedctx // it bounds writing
	// began is true after the first line of the answer, for which there is answerTime.
	began      bool
	answerTime time.Duration
}

// frame is a line of an answer.
type frame struct {
	End    bool   `json:"end,omitempty"`
	Absent bool   `json:"absent,omitempty"`
	Error  string `json:"error,omitempty"`
	Data   any    `json:"data,omitempty"`
}

// parse reads a request and returns the name of what is asked.
func (r *Request) parse(line []byte) (name string, err error) {
	var q struct {
		Ask  string          `json:"ask"`
		Args json.RawMessage `json:"args"`
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return "", fmt.Errorf("the request is not JSON: %w", err)
	}
	r.args = q.Args
	return q.Ask, nil
}

// Decode decodes the arguments.
func (r *Request) Decode(v any) error {
	if err := json.Unmarshal(r.args, v); err != nil {
		return fmt.Errorf("the arguments of the request: %w", err)
	}
	return nil
}

// Line writes a line of a long answer. It fails when ctx ends, or if the client does not read.
func (r *Request) Line(data any) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	return r.write(frame{Data: data})
}

func (r *Request) end(answer any, err error) {
	last := frame{End: true, Data: answer}
	if err != nil {
		text := err.Error()
		last = frame{End: true, Error: strings.ToValidUTF8(cmp.Or(text[:min(len(text), maxError)], "refused"), "")}
	}
	_ = r.write(last) // the client may be gone
}

func (r *Request) write(f frame) error {
	if !r.began {
		r.began = true
		_ = r.conn.SetWriteDeadline(time.Now().Add(r.answerTime))
	}
	if r.ctx.Err() != nil { // it may have set the deadline before
		_ = r.conn.SetWriteDeadline(time.Now().Add(graceTime))
	}
	return json.NewEncoder(r.conn).Encode(f)
}

// IsGone reports whether the client has closed its end: a frozen daemon finds requests of clients that went on long ago.
func (r *Request) IsGone() (gone bool) {
	u, ok := r.conn.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN)
	})
	return gone || err != nil
}
