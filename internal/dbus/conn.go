// Package dbus calls methods over D-Bus, as far as calls with texts, numbers and
// what was read of another property as arguments go, and a text, a truth value, a
// list of texts or a property as answer. It exists because
// a whole library costs every start of the binary 2 to 5 %, whether it calls or
// not, and a few calls need none of what else that can do.
//
// See the D-Bus Specification, version 0.43.
package dbus

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrProtocol: the other end does not speak D-Bus as it should.
var ErrProtocol = errors.New("not as the D-Bus specification has it")

// ErrAuth: the bus does not let this user in.
var ErrAuth = errors.New("authentication refused")

// Error is a method's own error.
type Error struct {
	// Name is the error's, such as org.freedesktop.DBus.Error.ServiceUnknown.
	Name string
	// Text is its first argument, if that is a text.
	Text string
}

// Error is "name: text".
func (e *Error) Error() string { return e.Name + ": " + e.Text }

// The bus itself.
const (
	busName = "org.freedesktop.DBus"
	busPath = "/org/freedesktop/DBus"
)

// Conn is a connection to a message bus. It is used by one goroutine at a time,
// and of no more use after an error that is no [Error].
type Conn struct {
	net    net.Conn
	in     *bufio.Reader
	serial uint32
}

// Dial connects to the bus that listens on a Unix socket, as the user that the
// process is of.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	c := &Conn{net: nc, in: bufio.NewReader(nc)}
	defer c.within(ctx)()
	if err := c.authenticate(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	hello := Method{Destination: busName, Path: busPath, Interface: busName, Name: "Hello"}
	if err := c.call(hello, new(string)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.net.Close() }

// within bounds reading and writing by a context until the function is called.
func (c *Conn) within(ctx context.Context) (done func()) {
	stop := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// authenticate proves by the socket's credentials who is calling (section
// "Authentication Protocol", mechanism EXTERNAL).
func (c *Conn) authenticate() error {
	id := hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid())))
	if _, err := io.WriteString(c.net, "\x00AUTH EXTERNAL "+id+"\r\n"); err != nil {
		return err
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("read the answer to AUTH: %w", err)
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("%w: %.100q", ErrAuth, line)
	}
	_, err = io.WriteString(c.net, "BEGIN\r\n")
	return err
}

// Call calls a method with texts and stores its answer into a *string, *bool,
// *[]string or, of a variant, *Value. A service that is not running is not started.
func (c *Conn) Call(ctx context.Context, m Method, answer any, args ...string) error {
	values := make([]Value, len(args))
	for i, a := range args {
		values[i] = Text(a)
	}
	return c.CallWith(ctx, m, answer, values...)
}

// CallWith is Call with arguments of other types.
func (c *Conn) CallWith(ctx context.Context, m Method, answer any, args ...Value) error {
	defer c.within(ctx)()
	err := c.call(m, answer, args...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (c *Conn) call(m Method, answer any, args ...Value) error {
	c.serial++
	if _, err := c.net.Write(m.encode(c.serial, args)); err != nil {
		return err
	}
	for {
		r, err := readMessage(c.in)
		if err != nil {
			return err
		}
		if r.replyTo != c.serial { // a signal, such as the one that names us
			continue
		}
		switch r.kind {
		case kindReturn:
			return r.decode(answer)
		case kindError:
			e := &Error{Name: r.errorName}
			if strings.HasPrefix(r.signature, "s") {
				if err := r.text(&e.Text); err != nil {
					return err
				}
			}
			return e
		}
	}
}
