// Package online implements wire with net/http.
package online

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"time"

	"github.com/cnibox/cnibox/roles/ipam/cloud/metadata/wire"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// headerTimeout limits the wait for the header of a reply.
const headerTimeout = 10 * time.Second

// Web is a wire.Web. Its clients do not share connections.
type Web struct {
	// Header limits the wait for the header of a reply. 0 means 10 s.
	Header time.Duration
}

// Open returns a client.
func (w Web) Open() (wire.Client, error) {
	c, err := web.New(web.Options{Header: cmp.Or(w.Header, headerTimeout)})
	if err != nil {
		return nil, err
	}
	return client{c}, nil
}

// XML decodes a document.
func (Web) XML(doc []byte, into any) error { return xml.Unmarshal(doc, into) }

type client struct{ web *web.Client }

func (c client) Send(ctx context.Context, r *wire.Request) (*wire.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	resp, err := c.web.Do(req)
	if err != nil {
		return nil, err
	}
	return &wire.Response{
		Code: resp.StatusCode, Status: resp.Status, Header: textproto.MIMEHeader(resp.Header),
		RetryAfter: web.RetryAfter(resp.Header), Body: body{resp.Body},
	}, nil
}

func (c client) Close() { c.web.CloseIdle() }

// body makes its connection available for further requests when it is closed.
type body struct{ io.ReadCloser }

func (b body) Close() error {
	web.Discard(b.ReadCloser)
	return nil
}
