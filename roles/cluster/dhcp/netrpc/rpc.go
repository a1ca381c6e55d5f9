// Package netrpc implements the protocol of Go's net/rpc over HTTP CONNECT on a unix socket, which the
// reference's dhcp plugin and its daemon use.
//
// The standard library's net/rpc looks for methods by name, which keeps the linker from leaving out methods of all types: it makes each
// start of the binary 4 to 9 % slower. Its encoding, encoding/gob, costs 2 % and does not.
package netrpc

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
)

// The first lines of a connection in both directions (net/rpc, HandleHTTP).
const (
	connectLine   = "CONNECT /_goRPC_ HTTP/1.0"
	connectedLine = "HTTP/1.0 200 Connected to Go RPC"
)

// request precedes a call's arguments.
type request struct {
	ServiceMethod string
	Seq           uint64
}

// response precedes a call's result.
type response struct {
	ServiceMethod string
	Seq           uint64
	Error         string
	// Code is the kind of error. Programs that use net/rpc neither send nor read it.
	Code uint64
}

// Error is an error that a server returned.
type Error struct {
	Text string
	// Code is the kind of error; 0 from a server that uses net/rpc.
	Code uint64
	// NoMethod means that the server does not know the method.
	NoMethod bool
}

func (e *Error) Error() string { return e.Text }

// noMethod returns net/rpc's text for an unknown method.
func noMethod(method string) string { return "rpc: can't find method " + method }

// failure returns the response's error as an *Error, or nil.
func (r *response) failure(method string) error {
	if r.Error == "" {
		return nil
	}
	// net/rpc has another text if the whole service is unknown.
	unknown := r.Error == noMethod(method) || r.Error == fmt.Sprintf("rpc: can't find service %s", method)
	return &Error{Text: r.Error, Code: r.Code, NoMethod: unknown}
}

const (
	// maxLine bounds the header lines before the calls, in bytes.
	maxLine = 4096
	// maxMessage bounds what a peer sends for one value, with the descriptions of its types. A network configuration has a few kB.
	maxMessage = 1 << 20
)

var errTooLarge = errors.New("message is too large")

// values are those that a connection carries: structs. Each is described before the first of its type.
type values struct {
	r   *bufio.Reader
	w   *bufio.Writer
	enc *gob.Encoder
	dec *gob.Decoder
	// left is how many bytes the peer may still send for the value that is read.
	left int
}

func newValues(conn net.Conn, r *bufio.Reader) *values {
	v := &values{r: r, w: bufio.NewWriter(conn)}
	v.enc, v.dec = gob.NewEncoder(v.w), gob.NewDecoder(v)
	return v
}

// ReadByte implements io.ByteReader: without it the decoder would read more than a value.
func (v *values) ReadByte() (byte, error) {
	if v.left == 0 {
		return 0, errTooLarge
	}
	v.left--
	return v.r.ReadByte()
}

// Read implements io.Reader.
func (v *values) Read(b []byte) (int, error) {
	if v.left == 0 {
		return 0, errTooLarge
	}
	n, err := v.r.Read(b[:min(len(b), v.left)])
	v.left -= n
	return n, err
}

// encode writes values, each a struct or a pointer to one, in one write.
func (v *values) encode(all ...any) error {
	for _, one := range all {
		if err := v.enc.Encode(one); err != nil {
			return fmt.Errorf("encode: %w", err)
		}
	}
	return v.w.Flush()
}

// decode reads the next value into a struct, or skips it if into is nil. At the end of the stream, between two values, it returns io.EOF.
func (v *values) decode(into any) (err error) {
	defer func() { // the decoder is not made for hostile peers
		if p := recover(); p != nil {
			err = fmt.Errorf("decode: %v", p)
		}
	}()
	v.left = maxMessage
	err = v.dec.Decode(into)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("decode: %w", err)
	}
	return err
}
