// Package grpc calls one method of a gRPC server on a Unix socket: one request, one reply, a connection for each call. HTTP/2 is net/http's:
// gRPC's own library costs every start 10 ms.
package grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// maxReply is the maximum size of a reply in bytes, and maxHeader that of its header fields.
const (
	maxReply  = 1 << 20
	maxHeader = 16 << 10
)

// prefixSize is the size of what precedes a message: whether it is compressed, and its size.
const prefixSize = 5

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
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		Protocols: protocols, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}
	defer t.CloseIdleConnections()
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	answer, err := t.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // nothing is lost with it
	return message(answer)
}

// message returns the message in an answer.
func message(a *http.Response) ([]byte, error) {
	if a.StatusCode != http.StatusOK {
		return nil, errReply("HTTP status %d", a.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(a.Body, maxReply+prefixSize+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxReply+prefixSize {
		return nil, errReply("more than %d bytes", maxReply)
	}
	fields := a.Trailer
	if len(b) == 0 && fields.Get("Grpc-Status") == "" { // a refusal can have them before the message
		fields = a.Header
	}
	code, err := strconv.ParseUint(fields.Get("Grpc-Status"), 10, 16)
	if err != nil {
		return nil, errReply("grpc-status %q", fields.Get("Grpc-Status"))
	}
	if code != 0 {
		text, err := url.PathUnescape(fields.Get("Grpc-Message"))
		if err != nil {
			text = fields.Get("Grpc-Message")
		}
		return nil, &StatusError{Code: int(code), Message: text}
	}
	if len(b) < prefixSize || b[0] != 0 || binary.BigEndian.Uint32(b[1:]) != uint32(len(b)-prefixSize) {
		return nil, errReply("want one message without compression")
	}
	return b[prefixSize:], nil
}
