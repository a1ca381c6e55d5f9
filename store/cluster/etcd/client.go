package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// maxReply bounds a reply and a message of a stream. Pages and fragments are much smaller, but a
// single record can have 1.5 MB by etcd's default.
const maxReply = 16 << 20

// Status codes of gRPC that are handled here.
const (
	codeInvalidArgument    = 3
	codeNotFound           = 5
	codePermissionDenied   = 7
	codeFailedPrecondition = 9
	codeOutOfRange         = 11
	codeUnauthenticated    = 16
)

// client sends each request to one etcd server after the other until one answers.
type client struct {
	web       *web.Client
	conns     web.Conns
	endpoints []string
	// at is the index of the endpoint that answered last.
	at                 atomic.Uint32
	username, password string
	mu                 sync.Mutex
	token              string
	// open is true if etcd needs no token, because its authentication is off.
	open bool
	warn func(string)
}

func newClient(o Options) (*client, error) {
	c := &client{username: o.Username, password: o.Password, warn: o.Warn}
	var err error
	c.web, err = web.New(web.Options{TLS: o.TLS, Conns: &c.conns})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	for _, e := range o.Endpoints {
		c.endpoints = append(c.endpoints, strings.TrimRight(e, "/"))
	}
	c.at.Store(rand.Uint32N(uint32(len(c.endpoints)))) // spreads the nodes over the servers
	return c, nil
}

// failure is an error that etcd reports, in the body of a reply or in a stream.
type failure struct {
	Code    int    `json:"code"`
	Grpc    int    `json:"grpc_code"`
	Message string `json:"message"`
	Text    string `json:"error"`
	status  int
}

func (f *failure) Error() string {
	text := f.Message
	if text == "" {
		text = f.Text
	}
	if text == "" {
		return fmt.Sprintf("etcd answers with HTTP status %d", f.status)
	}
	return printable(text)
}

// printable bounds a server's text, and removes what could change a terminal or a log.
func printable(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text[:min(len(text), 256)], "?")))
}

// Is makes each failure a cluster.ErrUnavailable. The requests are valid, so a failure is temporary.
func (f *failure) Is(target error) bool { return target == cluster.ErrUnavailable }

func (f *failure) code() int { return max(f.Code, f.Grpc) }

// stale reports whether the token was refused, so that a new one may be accepted.
func (f *failure) stale() bool {
	return f.code() == codeUnauthenticated || f.code() == codeInvalidArgument && strings.Contains(f.Error(), "auth")
}

// refused reports whether a request without a token was refused, because authentication was turned on. The gateway has
// the rights of its own certificate then, or none.
func (f *failure) refused() bool {
	return f.code() == codeInvalidArgument || f.code() == codePermissionDenied
}

// call sends a request, to each server at most once.
func (c *client) call(ctx context.Context, path string, in, out any) error {
	var faults []error
	for range c.endpoints {
		err := c.sendAuthorized(ctx, path, in, out)
		if err == nil || ctx.Err() != nil {
			return err
		}
		var f *failure
		if errors.As(err, &f) && (f.code() == codeOutOfRange || f.code() == codeNotFound) || errors.Is(err, web.ErrTooLarge) {
			return err // every server would return it
		}
		faults = append(faults, err)
		c.next()
	}
	return errors.Join(faults...)
}

// next selects the next server.
func (c *client) next() { c.at.Add(1) }

func (c *client) endpoint() string { return c.endpoints[int(c.at.Load())%len(c.endpoints)] }

// sendAuthorized sends a request to one server. If the token is refused, it gets a new one and sends
// again, once.
func (c *client) sendAuthorized(ctx context.Context, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.send(ctx, c.endpoint(), path, in)
	if err != nil {
		return err
	}
	defer web.Discard(resp.Body)
	if err := json.NewDecoder(web.Limit(resp.Body, maxReply)).Decode(out); err != nil {
		if errors.Is(err, web.ErrTooLarge) {
			return err
		}
		return fmt.Errorf("%s%s: read reply: %w", c.endpoint(), path, web.Lost(ctx, err))
	}
	return nil
}

// send posts a request to a server and returns a reply of status 200. The caller closes it.
func (c *client) send(ctx context.Context, endpoint, path string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		token, err := c.authorize(ctx)
		if err != nil {
			return nil, err
		}
		resp, err := c.post(ctx, endpoint, path, body, token)
		var f *failure
		if try == 0 && c.username != "" && errors.As(err, &f) && (f.stale() || token == "" && f.refused()) {
			c.forget(token)
			continue
		}
		return resp, err
	}
}

func (c *client) post(ctx context.Context, endpoint, path string, body []byte, token string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	// With this header a server without a leader reports that. Otherwise it would not answer.
	r.Header.Set("Grpc-Metadata-hasleader", "true")
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	resp, err := c.web.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer web.Discard(resp.Body)
	f := &failure{}
	if b, err := web.ReadAll(resp.Body, 64<<10); err == nil && json.Unmarshal(b, f) != nil {
		// The gateway refuses certificates with a CommonName in plain text.
		*f = failure{Text: fmt.Sprintf("HTTP status %d: %s", resp.StatusCode, printable(string(b)))}
	}
	f.status = resp.StatusCode
	return nil, fmt.Errorf("%s%s: %w: %w", endpoint, path, cluster.ErrUnavailable, f)
}

// ping returns an error if a server does not answer. A stopped process keeps its connections, so only
// a request shows that.
func (c *client) ping(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/version", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.web.Do(r)
	if err != nil {
		return fmt.Errorf("etcd does not answer: %w", err)
	}
	web.Discard(resp.Body) // an answer of any status will do
	return nil
}

// authorize returns the token for etcd's authentication, or "" without authentication.
func (c *client) authorize(ctx context.Context) (string, error) {
	if c.username == "" {
		return "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" || c.open {
		return c.token, nil
	}
	body, err := json.Marshal(authRequest{Name: c.username, Password: c.password})
	if err != nil {
		return "", err
	}
	resp, err := c.post(ctx, c.endpoint(), "/v3/auth/authenticate", body, "")
	var f *failure
	if errors.As(err, &f) && f.code() == codeFailedPrecondition {
		c.open = true
		if c.warn != nil {
			c.warn("etcd's authentication is off: the user and password have no effect: " + f.Error())
		}
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("authenticate as %q: %w", c.username, err)
	}
	defer web.Discard(resp.Body)
	var got authResponse
	b, err := web.ReadAll(resp.Body, 64<<10)
	if err == nil {
		err = json.Unmarshal(b, &got)
	}
	if err == nil && got.Token == "" {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", fmt.Errorf("authenticate as %q: %w", c.username, web.Lost(ctx, err))
	}
	c.token = got.Token
	return c.token, nil
}

// current returns the current token.
func (c *client) current() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

// forget drops a token, so that the next request gets another one.
func (c *client) forget(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token == token {
		c.token, c.open = "", false
	}
}

// get reads one key. It returns nil if the key does not exist.
func (c *client) get(ctx context.Context, key string) (*keyValue, error) {
	var got rangeResponse
	if err := c.call(ctx, "/v3/kv/range", rangeRequest{Key: []byte(key)}, &got); err != nil {
		return nil, err
	}
	if len(got.KVs) == 0 {
		return nil, nil
	}
	return &got.KVs[0], nil
}
