// Package grpc calls one method of a gRPC server on a Unix socket: one request, one reply, a connection for each call. It implements what such
// a call needs of HTTP/2 (RFC 9113) and of HPACK (RFC 7541). The library costs every start 10 ms, and HTTP/2 alone 0.5 MB.
package grpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/url"
	"strconv"
)

// maxReply is the maximum size of a reply in bytes.
const maxReply = 1 << 20

// The codes of a StatusError that callers decide on
// (https://grpc.github.io/grpc/core/md_doc_statuscodes.html).
const (
	ResourceExhausted = 8
	Unavailable       = 14
)

// StatusError is a server's refusal.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("code %d: %q", e.Code, e.Message) }

// errReply returns the error for bytes that are not a gRPC server's.
func errReply(format string, args ...any) error {
	return fmt.Errorf("not a gRPC reply: "+format, args...)
}

// Call sends a request, which is a message in protobuf, to a method, such as "/v1.PodResourcesLister/Get", and returns the reply. The
// deadline of ctx bounds the call.
func Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	deadline, _ := ctx.Deadline()
	err = conn.SetDeadline(deadline)
	if err == nil {
		_, err = conn.Write(opening(method, request))
	}
	if err != nil {
		return nil, err
	}
	var a answer
	if err := a.read(conn); err != nil {
		return nil, err
	}
	return a.message()
}

// message returns the message in an answer.
func (a *answer) message() ([]byte, error) {
	if a.http != "200" {
		return nil, errReply("HTTP status %q", a.http)
	}
	code, err := strconv.ParseUint(a.status, 10, 16)
	if err != nil {
		return nil, errReply("grpc-status %q", a.status)
	}
	if code != 0 {
		text, err := url.PathUnescape(a.text)
		if err != nil {
			text = a.text
		}
		return nil, &StatusError{Code: int(code), Message: text}
	}
	if len(a.data) < 5 || a.data[0] != 0 || binary.BigEndian.Uint32(a.data[1:]) != uint32(len(a.data)-5) {
		return nil, errReply("want one message without compression")
	}
	return a.data[5:], nil
}
