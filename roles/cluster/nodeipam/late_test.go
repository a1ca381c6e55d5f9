//go:build kube

package nodeipam_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// gate forwards requests to the server, with the administrator's rights. A test may hold, drop or answer them.
type gate struct {
	url string
	// on is called with each request and its body. forward executes the request, also after the client gave up.
	on atomic.Pointer[func(r *http.Request, body string, forward func()) (refuse int)]
}

func (w *world) gate() *gate {
	w.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.CA)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: w.Address})
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	g := &gate{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+kubetest.Admin)
		if on := g.on.Load(); on != nil {
			forwarded := httptest.NewRecorder()
			if code := (*on)(r, string(body), func() { proxy.ServeHTTP(forwarded, r.WithContext(context.WithoutCancel(r.Context()))) }); code != 0 {
				w.WriteHeader(code)
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	w.t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	g.url = srv.URL
	return g
}

func (g *gate) handle(on func(r *http.Request, body string, forward func()) int) { g.on.Store(&on) }

func isAssignment(r *http.Request, body string) bool {
	return r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, nodesPath+"/") && strings.Contains(body, "podCIDR")
}

// TestLateRequest: a leader has sent an assignment, which the server gets only after another process leads and has
// assigned the same block to another Node. The late one fails.
func TestLateRequest(t *testing.T) {
	w := newWorld(t)
	old, next := w.gate(), w.gate()
	sent, late := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(sent) })
	lateOnce := sync.OnceFunc(func() { close(late) })
	// The former leader's renewals fail. Its first assignment reaches the server late.
	var cut atomic.Bool
	execute := make(chan struct{})
	old.handle(func(r *http.Request, body string, forward func()) int {
		switch {
		case cut.Load() && strings.Contains(r.URL.Path, "/leases/"):
			return http.StatusServiceUnavailable
		case isAssignment(r, body) && strings.HasSuffix(r.URL.Path, "/z"):
			once()
			<-execute
			forward()
			lateOnce()
			return http.StatusGatewayTimeout
		case isAssignment(r, body):
			return http.StatusGatewayTimeout
		}
		return 0
	})
	first := w.start(old.url, "-cluster-cidr=10.244.0.0/16")
	first.leads()
	w.create("z")
	<-sent
	w.create("a")
	cut.Store(true)
	// The next leader assigns the first block to a, and is held before it assigns a block to z.
	waits := make(chan struct{})
	waitsOnce := sync.OnceFunc(func() { close(waits) })
	resume := make(chan struct{})
	next.handle(func(r *http.Request, body string, _ func()) int {
		if isAssignment(r, body) && strings.HasSuffix(r.URL.Path, "/z") {
			waitsOnce()
			<-resume
		}
		return 0
	})
	second := w.start(next.url, "-cluster-cidr=10.244.0.0/16")
	second.leads()
	<-waits
	if got := w.assigned("a"); got != "10.244.0.0/24" {
		t.Fatalf("a has %s: the test expects the block that z was to get", got)
	}
	close(execute)
	<-late
	if got := w.get("z").Spec.PodCIDRs; len(got) > 0 {
		t.Errorf("z has %v by the late request", got)
	}
	close(resume)
	if got := w.assigned("z"); got != "10.244.1.0/24" {
		t.Errorf("z has %s", got)
	}
	w.assignedAll(2)
}

// TestServerTimeout: the server answers that it has no answer, and may have executed the request or not. Nothing is lost.
func TestServerTimeout(t *testing.T) {
	w := newWorld(t)
	g := w.gate()
	var executed, lost atomic.Int32
	g.handle(func(r *http.Request, body string, forward func()) int {
		switch {
		case !isAssignment(r, body):
			return 0
		case strings.HasSuffix(r.URL.Path, "/executed"):
			executed.Add(1)
			forward()
			return http.StatusGatewayTimeout
		case strings.HasSuffix(r.URL.Path, "/lost") && lost.Add(1) <= 5:
			return http.StatusGatewayTimeout
		}
		return 0
	})
	r := w.start(g.url, "-cluster-cidr=10.244.0.0/16")
	r.leads()
	w.create("executed")
	if got := w.assigned("executed"); got != "10.244.0.0/24" || executed.Load() != 1 {
		t.Errorf("it has %s after %d requests", got, executed.Load())
	}
	w.create("lost")
	if got := w.assigned("lost"); got != "10.244.1.0/24" || lost.Load() != 6 {
		t.Errorf("it has %s after %d requests", got, lost.Load())
	}
	await.Until(t, func() bool { return slices.Equal(w.events("lost"), []string{"CIDRAssignmentFailed"}) }, func() string { return "no event" })
	s := r.until("assignment", func(s status) bool { return s.Waiting == 0 })
	if s.Networks[0].Used != 2 || len(s.Faults) != 0 || len(w.events("executed")) != 0 {
		t.Errorf("%+v, events %v", s, w.events("executed"))
	}
}

// TestHostileServer: the API server answers half of the requests with an error or an empty reply, and executes some of
// them. Leaders lose it completely, one after the other. Every Node gets a block, and never one that another Node has.
func TestHostileServer(t *testing.T) {
	w := newWorld(t)
	w.referee(-1)
	type side struct {
		*replica
		lost atomic.Bool
	}
	var sides []*side
	codes := []int{http.StatusOK, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	for range 2 {
		s, g := &side{}, w.gate()
		g.handle(func(r *http.Request, _ string, forward func()) int {
			switch n := rand.IntN(8); {
			case n >= 4 && !s.lost.Load():
				return 0
			case n >= 2 && r.Method != http.MethodGet:
				forward()
			}
			return codes[rand.IntN(len(codes))]
		})
		s.replica = w.start(g.url, "-cluster-cidr=10.244.0.0/24", "-node-cidr-mask-size=32")
		sides = append(sides, s)
	}
	leader := func() (at int) {
		await.Until(t, func() bool {
			at = slices.IndexFunc(sides, func(s *side) bool { is, err := s.status(); return err == nil && is.Leader })
			return at >= 0
		}, func() string { return "no replica leads" })
		return at
	}
	const rounds, each = 3, 60
	for round := range rounds {
		for i := range each {
			w.create(fmt.Sprintf("node-%d", round*each+i))
			if i%3 == 0 && round > 0 {
				w.remove(fmt.Sprintf("node-%d", (round-1)*each+i))
			}
		}
		at := leader()
		sides[at].lost.Store(true)
		await.Until(t, func() bool { return leader() != at }, func() string { return "the other replica does not lead" })
		sides[at].lost.Store(false)
	}
	w.assignedAll(rounds*each - (rounds-1)*each/3)
	for _, s := range sides {
		if strings.Contains(s.log.String(), "needs an operator") {
			t.Error("a replica reports an assignment of another one")
		}
	}
}

// TestStripped: an admission webhook removes the pod networks. The server executes the request without an error, the Node is reported and tried again.
func TestStripped(t *testing.T) {
	w := newWorld(t)
	g := w.gate()
	var stripped atomic.Int32
	g.handle(func(r *http.Request, body string, _ func()) int {
		if isAssignment(r, body) && stripped.Add(1) <= 4 {
			r.Body = io.NopCloser(strings.NewReader(`{"metadata":{"annotations":{"stripped":""}}}`))
			r.ContentLength = -1
		}
		return 0
	})
	r := w.start(g.url, "-cluster-cidr=10.244.0.0/16")
	r.leads()
	w.create("a")
	await.Until(t, func() bool { return len(w.get("a").Spec.PodCIDRs) > 0 }, func() string { return "a has no pod network" })
	if got := w.events("a"); !slices.Equal(got, []string{"CIDRAssignmentFailed"}) {
		t.Errorf("events %v", got)
	}
}

// TestRelease: a leader that is stopped lets the next one lead at once. The next one need not protect Nodes from it.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	first := w.start("", "-cluster-cidr=10.244.0.0/16", "-leader-elect-lease-duration=1h", "-leader-elect-renew-deadline=59m")
	first.leads()
	g := w.gate()
	var fences atomic.Int32
	g.handle(func(r *http.Request, body string, _ func()) int {
		if r.Method == http.MethodPatch && strings.Contains(body, "nodeipam-fence") {
			fences.Add(1)
		}
		return 0
	})
	second := w.start(g.url, "-cluster-cidr=10.244.0.0/16")
	s := second.until("holder", func(s status) bool { return s.Holder != "" })
	if is, _ := first.status(); s.Leader || s.Holder != is.Identity || s.Synced {
		t.Errorf("%+v beside %+v", s, is)
	}
	first.stop()
	w.create("a")
	w.assigned("a")
	if n := fences.Load(); n != 0 {
		t.Errorf("%d requests to protect Nodes", n)
	}
}
