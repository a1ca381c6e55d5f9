// Package ovsdb makes transactions on an OVSDB server (RFC 7047), such as Open
// vSwitch's ovsdb-server, until a context ends. The server is not trusted: its
// messages have a size limit, and its values are decoded one by one.
package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// DefaultSocket is where Open vSwitch's ovsdb-server listens.
const DefaultSocket = "/var/run/openvswitch/db.sock"

// maxMessage is the largest message in bytes that is read. The rows of one port have about 1 kB.
const maxMessage = 1 << 20

var (
	// ErrProtocol means that the server's messages are not those of RFC 7047, or too large.
	ErrProtocol = errors.New("not an answer of OVSDB")
	// ErrTLS means that an endpoint needs TLS.
	ErrTLS = errors.New("TLS is not supported")
	// ErrEndpoint means that a text is not an endpoint.
	ErrEndpoint = errors.New("not an endpoint")
)

// Error is an error that the server returned for an operation (RFC 7047, section 5.2).
type Error struct {
	// Name is the kind, such as "timed out", and Details a text for people. The server chose both.
	Name, Details string
	// Operation is the operation's index. It is the number of operations if the commit failed.
	Operation int
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Name
	}
	return e.Name + ": " + e.Details
}

// IsTimeout reports whether the condition of an operation "wait" was not met in time.
func IsTimeout(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Name == "timed out"
}

// Conn is a connection to a server. It must not be used concurrently.
type Conn struct {
	conn  net.Conn
	limit *io.LimitedReader
	in    *json.Decoder
	id    int
	// broken is the error after which the connection has no defined state.
	broken error
}

// Endpoint splits the text of an endpoint into the network and address of package net: "unix:PATH", "tcp:HOST:PORT", or
// an absolute path. An empty text is DefaultSocket. The error wraps ErrTLS or ErrEndpoint.
func Endpoint(text string) (network, address string, err error) {
	kind, rest, ok := strings.Cut(text, ":")
	switch {
	case text == "":
		return "unix", DefaultSocket, nil
	case filepath.IsAbs(text):
		return "unix", text, nil
	case !ok:
	case kind == "ssl":
		return "", "", ErrTLS
	case kind == "unix" && filepath.IsAbs(rest):
		return "unix", rest, nil
	case kind == "tcp":
		if _, port, err := net.SplitHostPort(rest); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
				return "tcp", rest, nil
			}
		}
	}
	return "", "", ErrEndpoint
}

// Dial connects to a server.
func Dial(ctx context.Context, endpoint string) (*Conn, error) {
	network, address, err := Endpoint(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", endpoint, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newConn(conn), nil
}

func newConn(conn net.Conn) *Conn {
	c := &Conn{conn: conn, limit: &io.LimitedReader{R: conn, N: maxMessage}}
	c.in = json.NewDecoder(c.limit)
	return c
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// message is a request, an answer or a notification. An answer has no method.
type message struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
	ID     json.RawMessage `json:"id"`
}

// Transact runs operations on a database as one transaction: all or none of them. It returns a Result for each. If the
// server refuses one, the error wraps *Error. After any other error the connection cannot be used, and the transaction
// may have been made.
func (c *Conn) Transact(ctx context.Context, database string, ops ...Operation) ([]Result, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.id++
	params := []any{database}
	for _, o := range ops {
		params = append(params, o)
	}
	answer, err := c.call(params)
	if err == nil {
		var all []Result
		if all, err = results(answer, len(ops)); err == nil || errors.As(err, new(*Error)) {
			return all, err
		}
	}
	c.broken = err
	if cause := ctx.Err(); cause != nil {
		c.broken = fmt.Errorf("%w: %w", cause, err)
	}
	return nil, c.broken
}

// call sends a request and returns its answer. Meanwhile it answers the server's.
func (c *Conn) call(params []any) (*message, error) {
	id := strconv.Itoa(c.id)
	raw, err := coldjson.Marshal(params)
	if err == nil {
		err = c.send(`{"method":"transact","params":` + string(raw) + `,"id":` + id + `}`)
	}
	if err != nil {
		return nil, err
	}
	for {
		m, err := c.receive()
		if err != nil {
			return nil, err
		}
		switch {
		case m.Method == "echo" && isRequest(m):
			if err := c.send(`{"result":` + orEmpty(m.Params) + `,"error":null,"id":` + string(m.ID) + `}`); err != nil {
				return nil, err
			}
		case m.Method == "" && string(m.ID) == id:
			return m, nil
		}
	}
}

// isRequest reports whether a message waits for an answer.
func isRequest(m *message) bool { return len(m.ID) > 0 && string(m.ID) != "null" }

func orEmpty(params json.RawMessage) string {
	if len(params) == 0 {
		return "[]"
	}
	return string(params)
}

func (c *Conn) send(text string) error {
	_, err := io.WriteString(c.conn, text)
	return err
}

// receive reads one message. Messages have no frames: one ends where its JSON ends.
func (c *Conn) receive() (*message, error) {
	c.limit.N = maxMessage
	var raw json.RawMessage
	var syntax *json.SyntaxError
	err := c.in.Decode(&raw)
	switch {
	case errors.As(err, &syntax), err != nil && c.limit.N <= 0:
		return nil, fmt.Errorf("%w: no JSON of at most %d bytes", ErrProtocol, maxMessage)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, err
	}
	m := new(message)
	if err := coldjson.Unmarshal(raw, m); err != nil {
		return nil, fmt.Errorf("%w: no message", ErrProtocol)
	}
	return m, nil
}

// results decodes the answer to a transaction of n operations.
func results(m *message, n int) ([]Result, error) {
	if len(m.Error) > 0 && string(m.Error) != "null" {
		return nil, fmt.Errorf("%w: the request failed: %.200q", ErrProtocol, m.Error)
	}
	var all []Result
	if err := coldjson.Unmarshal(m.Result, &all); err != nil {
		return nil, fmt.Errorf("%w: no results", ErrProtocol)
	}
	for i, r := range all {
		if r.Error != "" {
			return nil, &Error{Name: r.Error, Details: r.Details, Operation: i}
		}
	}
	if len(all) != n {
		return nil, fmt.Errorf("%w: %d results for %d operations", ErrProtocol, len(all), n)
	}
	return all, nil
}
