// Package dbus calls methods over D-Bus until a context ends.
//
// The library github.com/godbus/dbus/v5 implements the protocol. This package adds what a CNI call
// needs: the context also bounds connecting, authentication and the first call, the number of bytes
// that are read for a call is bounded, and messages that are not answers are dropped.
package dbus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// ErrProtocol means that the bus violates the D-Bus protocol.
var ErrProtocol = errors.New("D-Bus protocol violation")

// ErrAuth means that the bus refuses this user.
var ErrAuth = errors.New("authentication refused")

// maxRead bounds the bytes that are read from the start of one call to the start of the next. The
// library's limit is 128 MiB for one message.
const maxRead = 1 << 20

// Error is an error that a method returned.
type Error struct {
	// Name is the D-Bus error name, such as org.freedesktop.DBus.Error.ServiceUnknown.
	Name string
	// Text is the first argument of the error, if that is a string.
	Text string
}

// Error returns "name: text".
func (e *Error) Error() string { return e.Name + ": " + e.Text }

// Method identifies a method of an object of a service.
type Method struct{ Destination, Path, Interface, Name string }

// Conn is a connection to a message bus. It serves one goroutine at a time. After an
// error that is not an [Error] it can only be closed.
type Conn struct {
	transport *transport
	bus       *dbus.Conn
}

// Dial connects to the bus that listens on a Unix socket, as the user of the process.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return newConn(ctx, nc)
}

// newConn authenticates to the bus on a connection. After an error the connection is closed.
func newConn(ctx context.Context, nc net.Conn) (*Conn, error) {
	t := &transport{Conn: nc, in: bufio.NewReader(nc)}
	bus, err := dbus.NewConn(t, dbus.WithIncomingInterceptor(dropAllButAnswers))
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	c := &Conn{transport: t, bus: bus}
	defer c.begin(ctx)()
	err = bus.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	switch {
	case err == nil:
		err = bus.Hello()
	case t.err.Load() == nil: // the connection did not fail
		err = fmt.Errorf("%w: %w", ErrAuth, err)
	}
	if err = explain(ctx, err); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// dropAllButAnswers makes the library ignore signals and calls to this process. It would answer calls,
// and does not validate signals of a hostile bus.
func dropAllButAnswers(m *dbus.Message) {
	if m.Type != dbus.TypeMethodReply && m.Type != dbus.TypeError {
		m.Type = 0
	}
}

// Close ends the connection and the library's goroutines.
func (c *Conn) Close() error { return c.bus.Close() }

// begin allows maxRead more bytes. If ctx ends before the returned function is called, reading and
// writing fail.
func (c *Conn) begin(ctx context.Context) (end func()) {
	c.transport.left.Store(maxRead)
	stop := context.AfterFunc(ctx, func() { _ = c.transport.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// Call calls a method and stores its answer, one value, in the variable that answer points to. If
// answer is nil, the value is ignored. Call does not start a service that is not running.
func (c *Conn) Call(ctx context.Context, m Method, answer any, args ...any) error {
	defer c.begin(ctx)()
	call := c.bus.Object(m.Destination, dbus.ObjectPath(m.Path)).CallWithContext(ctx, m.Interface+"."+m.Name, dbus.FlagNoAutoStart, args...)
	if err := explain(ctx, call.Err); err != nil {
		return err
	}
	if answer == nil {
		return nil
	}
	if err := call.Store(answer); err != nil {
		return fmt.Errorf("answer for a %T: %w: %w", answer, ErrProtocol, err)
	}
	return nil
}

// explain returns the library's error of a method as an Error. To other errors it adds ctx's.
func explain(ctx context.Context, err error) error {
	var failed dbus.Error
	switch {
	case errors.As(err, &failed):
		e := &Error{Name: failed.Name}
		if len(failed.Body) > 0 {
			e.Text, _ = failed.Body[0].(string)
		}
		return e
	case err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()):
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// transport is the connection that the library uses. It bounds the bytes that are read.
type transport struct {
	net.Conn
	in *bufio.Reader
	// left is the number of bytes that may still be read.
	left atomic.Int64
	// err is the first error of the connection.
	err atomic.Pointer[error]
}

// Read reads at most left bytes. Only one goroutine reads at a time.
func (t *transport) Read(b []byte) (int, error) {
	left := t.left.Load()
	if left <= 0 && len(b) > 0 {
		return 0, t.failed(fmt.Errorf("%w: more than %d bytes", ErrProtocol, maxRead))
	}
	n, err := t.in.Read(b[:min(int64(len(b)), left)])
	t.left.Add(-int64(n))
	return n, t.failed(err)
}

// Write writes to the bus.
func (t *transport) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	return n, t.failed(err)
}

// failed stores the first error, and returns err.
func (t *transport) failed(err error) error {
	if err != nil {
		t.err.CompareAndSwap(nil, &err)
	}
	return err
}

var _ io.ReadWriteCloser = (*transport)(nil)
