// Package wire is what package metadata needs to ask a cloud. Package online has it of
// net/http and encoding/xml, which a call that asks nobody does not initialize: see
// internal/entry.
package wire

import (
	"context"
	"io"
	"net/textproto"
	"time"
)

// Web is the way to a cloud.
type Web interface {
	// Open makes a client for one question, which may take several requests.
	Open() (Client, error)
	// XML decodes a document as encoding/xml does.
	XML(doc []byte, into any) error
}

// Client sends requests. It heeds no proxy of the environment and follows no redirect.
type Client interface {
	// Send sends a request without a body. Its error is that of the connection, with a
	// url.Error in it, or the context's. The caller closes the response's body.
	Send(ctx context.Context, r *Request) (*Response, error)
	// Close ends idle connections.
	Close()
}

// Request is one request.
type Request struct {
	Method, URL string
	Header      textproto.MIMEHeader
}

// Response is the head of a reply, and its body to be read.
type Response struct {
	// Code is the status, and Status the line: "404 Not Found".
	Code   int
	Status string
	Header textproto.MIMEHeader
	// RetryAfter is how long the server asks to be left alone.
	RetryAfter time.Duration
	Body       io.ReadCloser
}
