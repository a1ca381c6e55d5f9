package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles/ipam/cloud/metadata/wire"
)

const (
	// timeout bounds one question, however many requests that takes.
	timeout = 20 * time.Second
	maxBody = 2 << 20
	// maxInterfaces bounds the requests where each interface has its own.
	maxInterfaces = 64
)

// Of RFC 9110, sections 9.3 and 15.
const (
	methodGet = "GET"
	methodPut = "PUT"

	statusOK              = 200
	statusUnauthorized    = 401
	statusForbidden       = 403
	statusNotFound        = 404
	statusTimeout         = 408
	statusGone            = 410
	statusTooManyRequests = 429
)

// errAbsent is a 404: the cloud has no such key.
var errAbsent = errors.New("no such key")

// asker sends the requests of one question to one base URL.
type asker struct {
	wire wire.Client
	xml  func(doc []byte, into any) error
	base string
	// header is sent with each request; its keys are canonical.
	header textproto.MIMEHeader
	// login gets the credentials into header, nil where there are none; it is called
	// again, once, when they are refused.
	login func(ctx context.Context, a *asker) error
	// genuine judges the header of each reply.
	genuine func(textproto.MIMEHeader) error
}

// overHTTP makes a provider's Fetch: it asks the base URLs one after the other
// until somebody answers. none is why a good reply may show no addresses.
func overHTTP(name, none string, bases []string, ask func(context.Context, *asker) ([]nic, error)) func(context.Context, Query) (*Reply, error) {
	return func(ctx context.Context, q Query) (*Reply, error) {
		bases := bases
		if q.URL != "" {
			if err := CheckURL(q.URL); err != nil {
				return nil, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
			}
			bases = []string{q.URL}
		}
		if q.Web == nil {
			return nil, noWay(name)
		}
		client, err := q.Web.Open()
		if err != nil {
			return nil, err
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		var silence string
		for i, base := range bases {
			nics, err := askOne(ctx, &asker{wire: client, xml: q.Web.XML, base: strings.TrimSuffix(base, "/"), header: textproto.MIMEHeader{}}, len(bases)-i, ask)
			if err == nil {
				return finish(name, nics, q.Own, none)
			}
			if err = fmt.Errorf("%s%w", silence, err); !silent(err) || i == len(bases)-1 {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			silence = err.Error() + "; " // the first is who ought to have answered
		}
		return nil, fmt.Errorf("%s: %w: no URL to ask", name, ErrInvalid)
	}
}

// noWay is the error of a query without Web.
func noWay(name string) error {
	return fmt.Errorf("%s: %w: there is no way to ask", name, ErrUnavailable)
}

// askOne asks one base URL, in its share of the time that is left.
func askOne(ctx context.Context, a *asker, share int, ask func(context.Context, *asker) ([]nic, error)) ([]nic, error) {
	ctx, cancel := shareOf(ctx, share)
	defer cancel()
	nics, err := ask(ctx, a)
	switch {
	case errors.Is(err, errAbsent):
		err = &laterError{err: err}
	case errors.Is(err, errToken):
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nics, err
}

// shareOf is a share of the time that is left, so that there is some for the others.
func shareOf(ctx context.Context, share int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(timeout)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(share))
}

// silent tells whether nobody who knows answered: another base URL may.
func silent(err error) bool {
	var later *laterError
	return errors.As(err, &later) && later.status == 0
}

// CheckURL tells why a URL cannot be a provider's base: metadata is plain HTTP on
// an address of the node's link, and a name would be somebody else's to resolve.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("%.100q is no URL", s)
	}
	_, addrErr := netip.ParseAddr(u.Hostname())
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%.100q: want http://ADDRESS or https://HOST", s)
	case u.Hostname() == "":
		return fmt.Errorf("%.100q names no host", s)
	case u.Scheme == "http" && addrErr != nil:
		return fmt.Errorf("%.100q: over plain http the host is an address, not a name that others resolve", s)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%.100q: want no user, query or fragment", s)
	}
	return nil
}

// get asks for a path; of one that the cloud has not the error is errAbsent.
func (a *asker) get(ctx context.Context, path string) ([]byte, error) {
	if a.login != nil && len(a.header) == 0 {
		if err := a.login(ctx, a); err != nil {
			return nil, err
		}
	}
	body, err := a.send(ctx, methodGet, path)
	if a.login != nil && errors.Is(err, errToken) {
		if err := a.login(ctx, a); err != nil {
			return nil, err
		}
		body, err = a.send(ctx, methodGet, path)
	}
	return body, err
}

// text is get of one short value; "" when the cloud has none.
func (a *asker) text(ctx context.Context, path string) (string, error) {
	b, err := a.get(ctx, path)
	if errors.Is(err, errAbsent) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// lines is get of a value of one line each; none when the cloud has none.
func (a *asker) lines(ctx context.Context, path string) ([]string, error) {
	s, err := a.text(ctx, path)
	return strings.Fields(s), err
}

// errToken is a 401: the credentials are missing, wrong or too old.
var errToken = errors.New("401 Unauthorized")

// send does one request.
func (a *asker) send(ctx context.Context, method, path string) ([]byte, error) {
	if _, err := url.Parse(a.base + path); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	header := textproto.MIMEHeader{"User-Agent": {"cnibox"}}
	for k, v := range a.header {
		header[k] = v
	}
	resp, err := a.wire.Send(ctx, &wire.Request{Method: method, URL: a.base + path, Header: header})
	if err != nil {
		return nil, a.lost(ctx, path, err)
	}
	defer resp.Body.Close()
	if err := a.judge(resp); err != nil {
		return nil, fmt.Errorf("%s %s%s: %w", method, a.base, path, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, a.lost(ctx, path, err)
	case len(body) > maxBody:
		return nil, fmt.Errorf("%s %s%s: %w: more than %d bytes", method, a.base, path, ErrInvalid, maxBody)
	}
	return body, nil
}

// lost is an error of the connection.
func (a *asker) lost(ctx context.Context, path string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("ask %s%s: %w", a.base, path, ctx.Err())
	}
	if u := new(url.Error); errors.As(err, &u) { // it names method and URL again
		err = u.Err
	}
	return &laterError{err: fmt.Errorf("ask %s%s: %w", a.base, path, err)}
}

// judge turns what is no good reply into an error.
func (a *asker) judge(resp *wire.Response) error {
	code := resp.Code
	switch {
	case code == statusOK:
	case code == statusUnauthorized:
		return errToken
	case code == statusForbidden:
		return fmt.Errorf("%w: %s", ErrRefused, printable(resp.Status))
	case code == statusNotFound:
		return errAbsent
	case code == statusGone, code == statusTimeout, code == statusTooManyRequests, code >= 500:
		return &laterError{err: errors.New(printable(resp.Status)), status: code, after: resp.RetryAfter}
	case code >= 300 && code < 400:
		return fmt.Errorf("%w: redirected to %.100q, which metadata never is", ErrInvalid, resp.Header.Get("Location"))
	default:
		return fmt.Errorf("%w: %s", ErrInvalid, printable(resp.Status))
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return fmt.Errorf("%w: compressed (%.20q) unasked", ErrInvalid, enc)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		return fmt.Errorf("%w: a page for people, from something between this node and its cloud", ErrInvalid)
	}
	if a.genuine != nil {
		if err := a.genuine(resp.Header); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}
