package netrpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// maxLine bounds the header lines before the calls, in bytes.
const maxLine = 4096

// connectTime bounds the time until the server answers a connection, which it does before any call. A call
// itself may take as long as ctx allows.
const connectTime = 10 * time.Second

var errNoServer = errors.New("it does not speak the protocol")

// Call calls one method of the server that listens on a unix socket. Without a method it
// only checks that a server answers. An error that the server returns is an *Error. When
// ctx ends Call closes the connection, which ends the call on the server.
func Call(ctx context.Context, socket, method string, args, reply any) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = call(ctx, conn, method, args, reply)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func call(ctx context.Context, conn net.Conn, method string, args, reply any) error {
	r := bufio.NewReaderSize(conn, maxLine)
	err := conn.SetDeadline(time.Now().Add(connectTime))
	if err == nil {
		err = connect(conn, r)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err == nil {
		err = ctx.Err() // its end may have set a deadline that was just removed
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if method == "" {
		return nil
	}
	if err := newEncoder(conn).encode(request{ServiceMethod: method}, args); err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	d, err := newDecoder(r)
	if err != nil {
		return err
	}
	var head response
	if err := d.decode(&head); err != nil {
		return fmt.Errorf("call %s: %w", method, closed(err))
	}
	if err := head.failure(method); err != nil {
		return err
	}
	if err := d.decode(reply); err != nil {
		return fmt.Errorf("call %s: %w", method, closed(err))
	}
	return nil
}

// connect switches the connection from HTTP to calls.
func connect(w io.Writer, r *bufio.Reader) error {
	if _, err := io.WriteString(w, connectLine+"\n\n"); err != nil {
		return err
	}
	line, err := header(r)
	if err == nil && line != connectedLine {
		err = errNoServer
	}
	return closed(err)
}

// header reads up to an empty line and returns the first.
func header(r *bufio.Reader) (string, error) {
	first := ""
	for n := 0; n < maxLine; {
		raw, err := r.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		n += len(raw)
		line := strings.TrimRight(string(raw), "\r\n")
		if line == "" {
			return first, nil
		}
		if first == "" {
			first = line
		}
	}
	return "", errNoServer
}

// closed explains the unexpected end of a connection.
func closed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}
