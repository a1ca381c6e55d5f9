// Package rest is a small client of Kubernetes' API on net/http. Linking client-go would add 7 ms to
// each start of each role.
//
// Credentials come from a kubeconfig or a pod's service account, and are read again if the server
// refuses them. Errors have the server's message and wrap sentinels. The size of every reply is
// bounded.
package rest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	// maxObject bounds an object in JSON. etcd accepts at most 1.5 MiB.
	maxObject = 8 << 20
	maxStatus = 64 << 10
	// attempts bounds the sending of a request if the server requests a pause (Retry-After), and
	// patience each pause.
	attempts = 4
	patience = 10 * time.Second
)

// Objects reads and writes objects as Client does.
type Objects interface {
	Get(ctx context.Context, path string, v any) error
	Create(ctx context.Context, path string, object, v any) error
	Patch(ctx context.Context, path, kind string, patch, v any) error
}

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	source Source
	conns  web.Conns

	mu     sync.Mutex
	config *Config
	web    *web.Client
}

// Open reads the source and the files that it names. It does not connect.
func Open(source Source) (*Client, error) {
	c := &Client{source: source}
	config, err := source()
	if err != nil {
		return nil, err
	}
	c.web, err = web.New(web.Options{TLS: &config.TLS, Conns: &c.conns})
	if err != nil {
		return nil, err
	}
	c.config = config
	return c, nil
}

// Close closes the unused connections.
func (c *Client) Close() {
	w, _ := c.current()
	w.CloseIdle()
}

// CloseFrom closes the connections from lost addresses.
func (c *Client) CloseFrom(lost func(netip.Addr) bool) { c.conns.CloseFrom(lost) }

func (c *Client) current() (*web.Client, *Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.web, c.config
}

// reload reads the source again and reports whether it has changed. It ignores an invalid source,
// because a file may be incomplete.
func (c *Client) reload() bool {
	config, err := c.source()
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if config.same(c.config) {
		return false
	}
	w, err := web.New(web.Options{TLS: &config.TLS, Conns: &c.conns})
	if err != nil {
		return false
	}
	c.web.CloseIdle()
	c.web, c.config = w, config
	return true
}

// request is one request. It can be sent several times.
type request struct {
	method, path string
	query        url.Values
	accept       string // empty means JSON
	kind         string // media type of the body
	body         []byte
}

// do sends a request until the server answers with 200 or 201, or refuses it. If credentials are
// refused, it reads them again, once. If the server requests a pause, it waits. The caller closes the
// body.
func (c *Client) do(ctx context.Context, r *request) (*http.Response, error) {
	reloaded := false
	for n := 1; ; n++ {
		resp, err := c.send(ctx, r)
		if err == nil && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated) {
			return resp, nil
		}
		var status *StatusError
		if err == nil {
			err = statusError(resp)
			errors.As(err, &status)
		}
		wait := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return nil, err
		case !reloaded && (status == nil || status.Code == http.StatusUnauthorized):
			// A token file is read for each request, so the second attempt uses its
			// new content.
			reloaded = true
			if _, config := c.current(); !c.reload() && (status == nil || config.TokenFile == "") {
				return nil, err
			}
		case status != nil && status.RetryAfter > 0 && status.RetryAfter <= patience && n < attempts &&
			(status.Code == http.StatusTooManyRequests || status.Code == http.StatusServiceUnavailable):
			wait = status.RetryAfter
		default:
			return nil, err
		}
		if wait > 0 {
			b := web.Backoff{}
			if b.Wait(ctx, wait) != nil {
				return nil, err
			}
		}
	}
}

// send sends a request once.
func (c *Client) send(ctx context.Context, r *request) (*http.Response, error) {
	w, config := c.current()
	u := config.Server.JoinPath(r.path)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	token, err := config.token()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
	req.Header.Set("User-Agent", "cnibox")
	if r.kind != "" {
		req.Header.Set("Content-Type", r.kind)
	}
	return w.Do(req)
}

// Get reads one object into v.
func (c *Client) Get(ctx context.Context, path string, v any) error {
	resp, err := c.do(ctx, &request{method: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	return decode(ctx, resp, v)
}

// The kinds of a patch
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply).
const (
	MergePatch          = "application/merge-patch+json"
	StrategicMergePatch = "application/strategic-merge-patch+json"
)

// Patch changes an object. It stores the resulting object in v unless v is nil. If the patch has a
// metadata.resourceVersion or uid that is not the object's, the error is ErrConflict.
func (c *Client) Patch(ctx context.Context, path, kind string, patch, v any) error {
	return c.write(ctx, http.MethodPatch, path, kind, patch, v)
}

// Create adds an object to a collection. It stores the result in v unless v is nil. If the object
// exists, the error is ErrConflict.
func (c *Client) Create(ctx context.Context, path string, object, v any) error {
	return c.write(ctx, http.MethodPost, path, "application/json", object, v)
}

// Delete removes an object. If it does not exist, the error is ErrNotFound.
func (c *Client) Delete(ctx context.Context, path string) error {
	resp, err := c.do(ctx, &request{method: http.MethodDelete, path: path})
	if err == nil {
		web.Discard(resp.Body)
	}
	return err
}

func (c *Client) write(ctx context.Context, method, path, kind string, object, v any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	resp, err := c.do(ctx, &request{method: method, path: path, query: url.Values{"fieldManager": {"cnibox"}}, kind: kind, body: body})
	if err != nil {
		return err
	}
	if v == nil {
		web.Discard(resp.Body)
		return nil
	}
	return decode(ctx, resp, v)
}

// decode decodes a body with one object and closes it.
func decode(ctx context.Context, resp *http.Response, v any) error {
	defer web.Discard(resp.Body)
	b, err := web.ReadAll(resp.Body, maxObject)
	if errors.Is(err, web.ErrTooLarge) || err == nil && !json.Valid(b) {
		return fmt.Errorf("%w: API server: the reply is not an object: %w", cluster.ErrUnavailable, errors.Join(err, errBody))
	}
	if err != nil {
		return web.Lost(ctx, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: API server: %w", cluster.ErrInvalid, err)
	}
	return nil
}

var errBody = errors.New("want JSON")

// Path joins the parts of an API path. Pass each part that does not come from this
// program through CheckName first.
func Path(parts ...string) string {
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/" + strings.Join(parts, "/")
}

// CheckName returns an error for a name that would have another meaning in a path.
func CheckName(what, name string) error {
	err := cluster.CheckName(name)
	if err == nil && name != strings.ToLower(name) {
		err = fmt.Errorf("%w: give lower case letters", cluster.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", what, name, err)
	}
	return nil
}
