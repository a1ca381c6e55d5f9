package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	// timeout limits one query, which can be several requests.
	timeout = 20 * time.Second
	// headerTimeout limits the wait for the header of a reply.
	headerTimeout = 10 * time.Second
	maxBody       = 2 << 20
	// maxInterfaces limits the requests for clouds with requests for each interface.
	maxInterfaces = 64
)

// errAbsent is a 404: the cloud does not have the key.
var errAbsent = errors.New("no such key")

// api is a metadata API at one base URL, for the requests of one query.
type api struct {
	client *web.Client
	base   string
	// header is sent with each request. Its keys are canonical.
	header http.Header
	// login puts the credentials into header. It is nil if none are needed. It is called again,
	// once, if the cloud rejects them.
	login func(ctx context.Context, a *api) error
	// checkHeader checks the header of each reply.
	checkHeader func(http.Header) error
}

// linkLocal is the base URL of most clouds.
const linkLocal = "http://169.254.169.254"

// cloud returns a provider with one base URL.
func cloud(name, base, summary, none string, read func(context.Context, *api) ([]nic, error)) Provider {
	return Provider{Name: name, Default: base, Summary: summary, Fetch: overHTTP(name, none, []string{base}, read)}
}

// document returns a read function for a cloud that has everything in one document.
func document(header http.Header, path string, decode func([]byte) ([]nic, error)) func(context.Context, *api) ([]nic, error) {
	return func(ctx context.Context, a *api) ([]nic, error) {
		maps.Copy(a.header, header)
		b, err := a.get(ctx, path)
		if err != nil {
			return nil, err
		}
		return decode(b)
	}
}

// overHTTP returns a provider's Fetch. It tries the base URLs in order until one replies. none
// explains why a valid reply may have no addresses.
func overHTTP(name, none string, bases []string, read func(context.Context, *api) ([]nic, error)) func(context.Context, Query) (*Reply, error) {
	return func(ctx context.Context, q Query) (*Reply, error) {
		bases := bases
		if q.URL != "" {
			if err := CheckURL(q.URL); err != nil {
				return nil, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
			}
			bases = []string{q.URL}
		}
		client, err := web.New(web.Options{Header: cmp.Or(q.HeaderTimeout, headerTimeout)})
		if err != nil {
			return nil, err
		}
		defer client.CloseIdle()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		var first string
		for i, base := range bases {
			nics, err := queryOne(ctx, &api{client: client, base: strings.TrimSuffix(base, "/"), header: http.Header{}}, len(bases)-i, read)
			if err == nil {
				return finish(name, nics, q.Own, none)
			}
			if err = fmt.Errorf("%s%w", first, err); !noReply(err) || i == len(bases)-1 {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			first = err.Error() + "; " // the error of the first URL is the most relevant one
		}
		return nil, fmt.Errorf("%s: %w: there is no URL", name, ErrInvalid)
	}
}

// queryOne queries one base URL in its share of the remaining time.
func queryOne(ctx context.Context, a *api, share int, read func(context.Context, *api) ([]nic, error)) ([]nic, error) {
	ctx, cancel := shareOf(ctx, share)
	defer cancel()
	nics, err := read(ctx, a)
	switch {
	case errors.Is(err, errAbsent):
		err = &laterError{err: err}
	case errors.Is(err, errToken):
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nics, err
}

// shareOf limits ctx to a share of the remaining time, so that some remains for the others.
func shareOf(ctx context.Context, share int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(timeout)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(share))
}

// noReply reports whether there was no reply, so that another base URL may work.
func noReply(err error) bool {
	var later *laterError
	return errors.As(err, &later) && later.status == 0
}

// CheckURL returns an error for a URL that cannot be a provider's base. Over plain HTTP the host
// must be an address, because a forged DNS reply could redirect a name.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("%.100q is not a URL", s)
	}
	_, addrErr := netip.ParseAddr(u.Hostname())
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%.100q: want http://ADDRESS or https://HOST", s)
	case u.Hostname() == "":
		return fmt.Errorf("%.100q has no host", s)
	case u.Scheme == "http" && addrErr != nil:
		return fmt.Errorf("%.100q: over plain http the host must be an address, not a name", s)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%.100q: want no user, query or fragment", s)
	}
	return nil
}

// get requests a path. If the cloud does not have it the error is errAbsent.
func (a *api) get(ctx context.Context, path string) ([]byte, error) {
	if a.login != nil && len(a.header) == 0 {
		if err := a.login(ctx, a); err != nil {
			return nil, err
		}
	}
	body, err := a.send(ctx, http.MethodGet, path)
	if a.login != nil && errors.Is(err, errToken) {
		if err := a.login(ctx, a); err != nil {
			return nil, err
		}
		body, err = a.send(ctx, http.MethodGet, path)
	}
	return body, err
}

// text requests a short value. It returns "" if the cloud does not have it.
func (a *api) text(ctx context.Context, path string) (string, error) {
	b, err := a.get(ctx, path)
	if errors.Is(err, errAbsent) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// lines requests a value with one item per line. It returns nil if the cloud does not have it.
func (a *api) lines(ctx context.Context, path string) ([]string, error) {
	s, err := a.text(ctx, path)
	return strings.Fields(s), err
}

// errToken is a 401: the credentials are missing, wrong or expired.
var errToken = errors.New("401 Unauthorized")

// send sends one request.
func (a *api) send(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	req.Header.Set("User-Agent", "cnibox")
	maps.Copy(req.Header, a.header)
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, a.connectionError(ctx, path, err)
	}
	defer web.Discard(resp.Body)
	if err := a.check(resp); err != nil {
		return nil, fmt.Errorf("%s %s%s: %w", method, a.base, path, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, a.connectionError(ctx, path, err)
	case len(body) > maxBody:
		return nil, fmt.Errorf("%s %s%s: %w: more than %d bytes", method, a.base, path, ErrInvalid, maxBody)
	}
	return body, nil
}

// connectionError wraps an error of the connection.
func (a *api) connectionError(ctx context.Context, path string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("query %s%s: %w", a.base, path, ctx.Err())
	}
	if u := new(url.Error); errors.As(err, &u) { // url.Error repeats the method and URL
		err = u.Err
	}
	return &laterError{err: fmt.Errorf("query %s%s: %w", a.base, path, err)}
}

// check returns an error for an invalid reply.
func (a *api) check(resp *http.Response) error {
	code := resp.StatusCode
	switch {
	case code == http.StatusOK:
	case code == http.StatusUnauthorized:
		return errToken
	case code == http.StatusForbidden:
		return fmt.Errorf("%w: %s", ErrRefused, printable(resp.Status))
	case code == http.StatusNotFound:
		return errAbsent
	case code == http.StatusGone, code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return &laterError{err: errors.New(printable(resp.Status)), status: code, after: web.RetryAfter(resp.Header)}
	case code >= 300 && code < 400:
		return fmt.Errorf("%w: redirected to %.100q: metadata services do not redirect", ErrInvalid, resp.Header.Get("Location"))
	default:
		return fmt.Errorf("%w: %s", ErrInvalid, printable(resp.Status))
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return fmt.Errorf("%w: compressed (%.20q), which was not requested", ErrInvalid, enc)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		return fmt.Errorf("%w: an HTML page, probably of a proxy between this node and its cloud", ErrInvalid)
	}
	if a.checkHeader != nil {
		if err := a.checkHeader(resp.Header); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}
