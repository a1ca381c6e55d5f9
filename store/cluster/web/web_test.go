package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/test/await"
)

func get(t *testing.T, c *Client, url string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(r)
}

// Both sides authenticate. A replaced CA or certificate applies from the next
// connection on.
func TestTLSRenewed(t *testing.T) {
	clustertest.Loopback(t)
	old, renewed := clustertest.NewAuthority(t), clustertest.NewAuthority(t)
	now := old
	server := map[*clustertest.Authority]tls.Certificate{}
	for _, a := range []*clustertest.Authority{old, renewed} {
		pair, err := tls.X509KeyPair(a.Server(t))
		if err != nil {
			t.Fatal(err)
		}
		server[a] = pair
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	srv.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(now.PEM)
		return &tls.Config{Certificates: []tls.Certificate{server[now]}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}, nil
	}}
	srv.StartTLS()
	defer srv.Close()

	dir := t.TempDir()
	files := TLS{CAFile: filepath.Join(dir, "ca"), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")}
	write := func(a *clustertest.Authority) {
		cert, key := a.Client(t, "client")
		for path, b := range map[string][]byte{files.CAFile: a.PEM, files.CertFile: cert, files.KeyFile: key} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(old)
	c, err := New(Options{TLS: &files})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		c.CloseIdle()
		resp, err := get(t, c, srv.URL)
		if err == nil {
			Discard(resp.Body)
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	now = renewed
	if err := ask(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Fatalf("a server that another CA signed: %v", err)
	}
	write(renewed)
	if err := ask(); err != nil {
		t.Fatalf("renewed: %v", err)
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string]TLS{
		"missing": {CAFile: filepath.Join(dir, "none")}, "no PEM": {CAFile: junk}, "empty": {CAFile: empty},
		"no key": {CertFile: junk}, "bad pair": {CertFile: junk, KeyFile: junk}, "directory": {CAFile: dir},
	} {
		if _, err := New(Options{TLS: &files}); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Neither a redirect nor a proxy in the environment leads to another server.
func TestNoOtherServer(t *testing.T) {
	clustertest.Loopback(t)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another server got a request") }))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	t.Setenv("HTTP_PROXY", other.URL)
	t.Setenv("ALL_PROXY", other.URL)
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()
	resp, err := get(t, c, srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	Discard(resp.Body)
	if resp.StatusCode != http.StatusTemporaryRedirect {
		t.Fatalf("status %d", resp.StatusCode)
	}
}

func TestUnavailable(t *testing.T) {
	clustertest.Loopback(t)
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	if _, err := get(t, c, "http://"+addr); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("no listener: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr, nil)
	if _, err := c.Do(r); !errors.Is(err, context.Canceled) || errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("a context that is done: %v", err)
	}
}

// If a server accepts a request and does not answer, Do returns an error in time.
func TestSilentServer(t *testing.T) {
	clustertest.Loopback(t)
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	defer srv.Close()
	defer close(done)
	c, err := New(Options{Header: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, c, srv.URL); !errors.Is(err, cluster.ErrUnavailable) {
		t.Fatalf("a silent server: %v", err)
	}
}

// A request on a connection from a lost address fails at once. Other connections continue.
func TestLostAddress(t *testing.T) {
	clustertest.Loopback(t)
	done := make(chan struct{})
	asked := make(chan struct{}, 1)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-done }))
	defer srv.Close()
	defer close(done)
	var conns Conns
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	c, err := New(Options{TLS: &TLS{CA: ca}, Conns: &conns, Header: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := get(t, c, srv.URL) //nolint:bodyclose // there is no reply
		failed <- err
	}()
	<-asked
	conns.CloseFrom(func(a netip.Addr) bool { return a != netip.MustParseAddr("127.0.0.1") })
	select {
	case err := <-failed:
		t.Fatalf("another address was lost: %v", err)
	default:
	}
	conns.CloseFrom(func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.1") })
	if err := await.Next(t, failed, "the error"); !errors.Is(err, cluster.ErrUnavailable) {
		t.Error(err)
	}
	conns.mu.Lock()
	defer conns.mu.Unlock()
	if len(conns.open) != 0 {
		t.Errorf("%d connections are left", len(conns.open))
	}
}

func TestLimit(t *testing.T) {
	for size, want := range map[int]error{0: nil, 9: nil, 10: nil, 11: ErrTooLarge, 1000: ErrTooLarge} {
		b, err := ReadAll(strings.NewReader(strings.Repeat("x", size)), 10)
		if !errors.Is(err, want) || len(b) > 10 {
			t.Errorf("%d bytes: %d read, %v", size, len(b), err)
		}
	}
}

func TestStream(t *testing.T) {
	s := NewStream(strings.NewReader(`{"a":1}`+"\n"+`{"a":2} {"a":"`+strings.Repeat("x", 10000)+`"}`), 2000)
	for i := 1; i <= 2; i++ {
		var v struct{ A int }
		if err := s.Decode(&v); err != nil || v.A != i {
			t.Fatalf("value %d: %v, %v", i, v, err)
		}
	}
	var v any
	if err := s.Decode(&v); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("a value without end: %v", err)
	}
	// A stream is longer than the bound, but none of its values is.
	s = NewStream(strings.NewReader(strings.Repeat(`{"a":"`+strings.Repeat("x", 500)+`"}`, 100)), 2000)
	for range 100 {
		if err := s.Decode(&v); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Decode(&v); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for i, high := range []time.Duration{100, 200, 400, 800, 1000, 1000, 1000} {
		high *= time.Millisecond
		if d := b.Next(0); d < high/2 || d > high {
			t.Errorf("attempt %d waits %v, not %v to %v", i, d, high/2, high)
		}
	}
	b.Reset()
	if d := b.Next(0); d > 100*time.Millisecond {
		t.Errorf("after success: %v", d)
	}
	if d := b.Next(7 * time.Second); d < 7*time.Second {
		t.Errorf("asked to wait 7 s: %v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Wait(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is done: %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	for v, want := range map[string]time.Duration{"": 0, "3": 3 * time.Second, "-1": 0, "x": 0, "99999999": time.Minute} {
		if d := RetryAfter(http.Header{"Retry-After": {v}}); d != want {
			t.Errorf("%q: %v", v, d)
		}
	}
}

// Retry ends with the first other result, after the last attempt, or when ctx ends.
func TestRetry(t *testing.T) {
	raced, other := errors.New("raced"), errors.New("other")
	ended, end := context.WithCancel(t.Context())
	end()
	for what, c := range map[string]struct {
		ctx   context.Context
		errs  []error
		tries int
		want  error
	}{
		"at once":   {t.Context(), []error{nil}, 1, nil},
		"raced":     {t.Context(), []error{raced, raced, nil}, 3, nil},
		"other":     {t.Context(), []error{raced, other}, 2, other},
		"too often": {t.Context(), []error{raced, raced, raced}, 3, raced},
		"ended":     {ended, []error{raced}, 1, raced},
	} {
		tries := 0
		wait := Backoff{Min: time.Millisecond, Max: time.Millisecond}
		err := wait.Retry(c.ctx, 3, raced, func(try int) error { tries++; return c.errs[try-1] })
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || tries != c.tries {
			t.Errorf("%s: %v after %d attempts", what, err, tries)
		}
	}
}
