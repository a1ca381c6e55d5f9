// Package web is an HTTP client for registries and metadata services. It authenticates both sides,
// bounds replies, and computes the pauses between attempts.
//
// It ignores proxies in the environment, does not follow redirects, and bounds every reply.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// Options of a Client. The zero value trusts the system's roots.
type Options struct {
	// TLS authenticates both sides. Nil means the system's roots and no client certificate.
	TLS *TLS
	// Conns gets the client's connections. It may be nil.
	Conns *Conns
	// Header bounds the wait for the reply's header. 0 means 15 s.
	Header time.Duration
}

const (
	// dialTimeout bounds connecting with the TLS handshake.
	dialTimeout   = 5 * time.Second
	headerTimeout = 15 * time.Second
	// maxHeader bounds the header of a reply.
	maxHeader = 64 << 10
)

// Client uses HTTP/1.1, so that a long stream has its own connection. If the server vanishes, the
// connection ends within 30 s.
type Client struct {
	http *http.Client
}

// New returns a client. It reads the files of o.TLS once, to report faults in them as
// cluster.ErrInvalid.
func New(o Options) (*Client, error) {
	if o.Header == 0 {
		o.Header = headerTimeout
	}
	if o.TLS == nil {
		o.TLS = &TLS{}
	}
	if o.Conns == nil {
		o.Conns = &Conns{}
	}
	if _, err := o.TLS.config(); err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	dialer := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &Client{http: &http.Client{
		Transport: &http.Transport{
			DialContext:            o.Conns.register(dialer.DialContext),
			DialTLSContext:         o.Conns.register(o.TLS.dial(dialer)),
			ResponseHeaderTimeout:  o.Header,
			MaxResponseHeaderBytes: maxHeader,
			IdleConnTimeout:        90 * time.Second,
			MaxIdleConnsPerHost:    32,
			// The size of a compressed reply does not bound its content.
			DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Do sends a request. It returns a reply of any status, also 3xx. If the server does not answer, also
// at the deadline of the request's context, the error is cluster.ErrUnavailable. After a cancellation
// it is the context's. The caller closes the body.
func (c *Client) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err == nil {
		return resp, nil
	}
	return nil, Lost(r.Context(), err)
}

// Lost returns the error for a broken connection: the context's error after a cancellation, else
// cluster.ErrUnavailable.
func Lost(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if errors.Is(err, cluster.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
}

// CloseIdle closes the unused connections.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// ReadAll reads a reply's body of at most limit bytes.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	return io.ReadAll(Limit(r, limit))
}

// Discard reads the rest of a body, so that its connection can be reused, unless too much is left.
func Discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxHeader)
	_ = body.Close()
}

// RetryAfter returns the pause that a server requests in seconds (RFC 9110 §10.2.3), at most a minute,
// or 0.
func RetryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, 60)) * time.Second
}
