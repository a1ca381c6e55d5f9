package netrpc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// handshakeTime bounds the wait for a connection's first call.
	handshakeTime = 10 * time.Second
	// writeTime bounds the wait for a client that does not read its answer.
	writeTime = 10 * time.Second
	// acceptPause is the delay before the next accept if the process cannot open more files. There is no
	// notification when it can.
	acceptPause = 100 * time.Millisecond
)

// Method is one method of a server.
type Method struct {
	// Args returns a pointer to a zero value of the arguments.
	Args func() any
	// Call returns the result, a struct. Its context ends with the connection. If the
	// result cannot be delivered undo is called, unless it is nil.
	Call func(ctx context.Context, args any) (result any, undo func(), err error)
}

// Server answers calls.
type Server struct {
	Methods map[string]Method
	// Admit returns an error for a client that is refused; nil admits all clients.
	Admit func(*net.UnixConn) error
	// Code returns the code that is sent with an error; nil sends 0.
	Code func(error) uint64
	Log  *slog.Logger
}

// Serve answers calls until ctx ends. Then it closes the listener and the connections
// and waits for the calls that are being answered.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !isTemporary(err) {
				return err
			}
			s.Log.Warn("cannot accept a connection yet", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		calls.Go(func() { s.serveConn(ctx, conn) })
	}
}

// isTemporary reports whether Accept failed for lack of a resource that other
// connections release when they end.
func isTemporary(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED},
		func(e error) bool { return errors.Is(err, e) })
}

func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	if u, ok := conn.(*net.UnixConn); ok && s.Admit != nil {
		if err := s.Admit(u); err != nil {
			s.Log.Warn("connection refused", "error", err)
			return
		}
	}
	if err := s.serve(ctx, conn); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		s.Log.Warn("connection ended", "error", err)
	}
}

// serve reads calls and runs them at the same time.
func (s *Server) serve(ctx context.Context, conn net.Conn) error {
	r := bufio.NewReaderSize(conn, maxLine)
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTime))
	line, err := header(r)
	if err != nil {
		return err
	}
	if line != connectLine {
		_, err := io.WriteString(conn, "HTTP/1.0 405 Method Not Allowed\nContent-Type: text/plain\n\n405 must CONNECT\n")
		return err
	}
	if _, err := io.WriteString(conn, connectedLine+"\n\n"); err != nil {
		return err
	}
	d, err := newDecoder(r)
	if err != nil {
		return err
	}
	c := &connection{Server: s, conn: conn, enc: newEncoder(conn)}
	ctx, cancel := context.WithCancel(ctx)
	defer c.calls.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	for first := true; ; first = false {
		if err := c.next(ctx, d); err != nil {
			return err
		}
		if first {
			_ = conn.SetReadDeadline(time.Time{}) // a client may keep its connection
		}
		if ctx.Err() != nil {
			return nil // the deadline of its end may have been removed above
		}
	}
}

// connection is the connection of one client.
type connection struct {
	*Server
	conn  net.Conn
	calls sync.WaitGroup
	// writing serializes answers.
	writing sync.Mutex
	enc     *encoder
}

// next reads one call and starts it.
func (c *connection) next(ctx context.Context, d *decoder) error {
	var req request
	if err := d.decode(&req); err != nil {
		return err
	}
	m, ok := c.Methods[req.ServiceMethod]
	if !ok {
		if err := d.decode(nil); err != nil {
			return err
		}
		return c.answer(req, struct{}{}, errors.New(noMethod(req.ServiceMethod)))
	}
	args := m.Args()
	if err := d.decode(args); err != nil {
		return err
	}
	c.calls.Go(func() {
		result, undo, err := m.Call(ctx, args)
		if err != nil {
			result = struct{}{}
		}
		if c.answer(req, result, err) != nil && err == nil && undo != nil {
			undo()
		}
	})
	return nil
}

func (c *connection) answer(req request, result any, failure error) error {
	head := response{ServiceMethod: req.ServiceMethod, Seq: req.Seq}
	if failure != nil {
		head.Error = failure.Error()
		if c.Code != nil {
			head.Code = c.Code(failure)
		}
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTime))
	return c.enc.encode(head, result)
}
