// Package web is how registries are spoken to over HTTP: one way to dial, to
// prove who both sides are, to bound what comes back, and to try again.
//
// Nothing between the node and its registry is trusted to choose: proxies of
// the environment are ignored, redirects are handed back as they are, and no
// reply is read without an end.
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

// Options say how a server is spoken to. The zero value trusts the system's roots.
type Options struct {
	// TLS proves both sides; nil trusts the system's roots and shows no certificate.
	TLS *TLS
	// Dial and Header bound connecting, handshake included, and waiting for the
	// reply's header; 0 is 5 s and 15 s.
	Dial, Header time.Duration
}

const (
	dialTimeout   = 5 * time.Second
	headerTimeout = 15 * time.Second
	// maxHeader is more than any registry's reply has.
	maxHeader = 64 << 10
)

// Client speaks HTTP/1.1 to a server. A long stream has a connection of its own
// then, and its end is seen within 30 s when the other side vanished.
type Client struct {
	http *http.Client
}

// New makes a client. It reads the files of o.TLS once: what cannot be used is
// said at once, as cluster.ErrInvalid.
func New(o Options) (*Client, error) {
	if o.Dial == 0 {
		o.Dial = dialTimeout
	}
	if o.Header == 0 {
		o.Header = headerTimeout
	}
	if o.TLS == nil {
		o.TLS = &TLS{}
	}
	if _, err := o.TLS.config(); err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrInvalid, err)
	}
	dialer := &net.Dialer{
		Timeout:         o.Dial,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &Client{http: &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			DialTLSContext:         o.TLS.dial(dialer),
			ResponseHeaderTimeout:  o.Header,
			MaxResponseHeaderBytes: maxHeader,
			IdleConnTimeout:        90 * time.Second,
			MaxIdleConnsPerHost:    4,
			// A compressed reply has no bound that can be told from its size.
			DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Do sends a request; every status is a reply, 3xx too. A server that does not
// answer is cluster.ErrUnavailable, also by the deadline of the request's context;
// when that was cancelled, the error is the context's. The caller closes the body.
func (c *Client) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err == nil {
		return resp, nil
	}
	return nil, Lost(r.Context(), err)
}

// Lost is what an error of a connection means, of reading a reply's body too:
// ctx was cancelled, or the registry cannot be heard.
func Lost(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if errors.Is(err, cluster.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
}

// CloseIdle ends the connections that nothing uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// ReadAll reads a reply's body of at most limit bytes.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	return io.ReadAll(Limit(r, limit))
}

// Discard reads the rest of a body, so that its connection can be used again,
// unless that is more than reading is worth.
func Discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxHeader)
	_ = body.Close()
}

// RetryAfter is how long a server asks to be left alone (RFC 9110 §10.2.3, in
// seconds as registries say it), at most a minute; 0 when it does not.
func RetryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, 60)) * time.Second
}
