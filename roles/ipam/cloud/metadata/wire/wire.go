// Package wire is the HTTP and XML interface of package metadata. Package online implements it with
// net/http and encoding/xml. A call without a request to a cloud does not initialize those
// packages: see internal/entry.
package wire

import (
	"context"
	"io"
	"net/textproto"
	"time"
)

// Web connects to a cloud.
type Web interface {
	// Open returns a client for one query, which can be several requests.
	Open() (Client, error)
	// XML decodes a document like encoding/xml.
	XML(doc []byte, into any) error
}

// Client sends requests. It ignores proxy variables of the environment and does not follow
// redirects.
type Client interface {
	// Send sends a request without a body. Its errors are those of the connection, wrapped in a
	// url.Error, and the context's. The caller closes the response's body.
	Send(ctx context.Context, r *Request) (*Response, error)
	// Close closes idle connections.
	Close()
}

// Request is a request.
type Request struct {
	Method, URL string
	Header      textproto.MIMEHeader
}

// Response has the header of a reply and a body to be read.
type Response struct {
	// Code is the status code. Status is the status line, such as "404 Not Found".
	Code   int
	Status string
	Header textproto.MIMEHeader
	// RetryAfter is the server's Retry-After.
	RetryAfter time.Duration
	Body       io.ReadCloser
}
