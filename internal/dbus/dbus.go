// Package dbus calls methods over D-Bus until a context ends.
//
// The library github.com/godbus/dbus/v5 speaks the protocol. This package adds what
// a CNI call needs: the context bounds connecting, authentication and the first call
// too, what is read between two calls is bounded, and messages other than answers are
// dropped.
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

// ErrProtocol: the other end does not speak D-Bus as it should.
var ErrProtocol = errors.New("not as the D-Bus specification has it")

// ErrAuth: the bus does not let this user in.
var ErrAuth = errors.New("authentication refused")

// maxRead bounds the bytes that are read between the begin of a call and the begin
// of the next one. The library bounds one message by 128 MiB.
const maxRead = 1 << 20

// Error is a method's own error.
type Error struct {
	// Name is the error's, such as org.freedesktop.DBus.Error.ServiceUnknown.
	Name string
	// Text is its first argument, if that is a text.
	Text string
}

// Error is "name: text".
func (e *Error) Error() string { return e.Name + ": " + e.Text }

// Method names a method of an object of a service.
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

// newConn introduces the process to the bus at the other end of a connection, which
// it closes if that fails.
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
	case t.err.Load() == nil: // the connection works
		err = fmt.Errorf("%w: %w", ErrAuth, err)
	}
	if err = explain(ctx, err); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// dropAllButAnswers has the library ignore signals and calls to this process, which
// it would answer, and which it takes from a hostile bus without looking closely.
func dropAllButAnswers(m *dbus.Message) {
	if m.Type != dbus.TypeMethodReply && m.Type != dbus.TypeError {
		m.Type = 0
	}
}

// Close ends the connection and the library's goroutines.
func (c *Conn) Close() error { return c.bus.Close() }

// begin allows further maxRead bytes, and fails reading and writing when ctx ends
// before the returned function is called.
func (c *Conn) begin(ctx context.Context) (end func()) {
	c.transport.left.Store(maxRead)
	stop := context.AfterFunc(ctx, func() { _ = c.transport.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// Call calls a method and stores its answer, one value, into what answer points to;
// a nil answer ignores it. A service that is not running is not started.
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

// explain makes an Error of the library's, and adds that ctx has ended to others.
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

// transport is the connection as the library sees it.
type transport struct {
	net.Conn
	in *bufio.Reader
	// left is how many bytes may still be read.
	left atomic.Int64
	// err is the first error of the connection.
	err atomic.Pointer[error]
}

// Read reads at most the bytes that the limit leaves. Only one goroutine reads at a time.
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

// failed notes an error.
func (t *transport) failed(err error) error {
	if err != nil {
		t.err.CompareAndSwap(nil, &err)
	}
	return err
}

var _ io.ReadWriteCloser = (*transport)(nil)
