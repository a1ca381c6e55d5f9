//go:build kube

package election

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

var server *kubetest.Server

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.DebianEtcd, func(s *kubetest.Server) { server = s }))
}

// member is a candidate of a test.
type member struct {
	wire *kubetest.Wire
	term atomic.Pointer[Term]
	seen atomic.Int32 // attempts without an error
	stop func()
	// answered is what lead returns.
	answered atomic.Bool
}

// join starts a candidate.
func join(t *testing.T, lease, identity string) *member {
	t.Helper()
	server.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "default"}}, http.StatusConflict)
	m := &member{wire: server.NewWire(t)}
	c, err := rest.Open(rest.Kubeconfig(server.Kubeconfig(t, m.wire.Address, kubetest.Admin)))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Client: c, Namespace: "default", Name: lease, Identity: identity, Log: slog.New(slog.DiscardHandler),
		Duration: 3 * time.Second, Deadline: 2 * time.Second, Retry: 50 * time.Millisecond,
		Seen: func(_ string, err error) {
			if err == nil {
				m.seen.Add(1)
			}
		},
	}
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Run(ctx, o, func(ctx context.Context, term *Term) bool {
			m.term.Store(term)
			<-ctx.Done()
			m.term.Store(nil)
			return m.answered.Load()
		})
	}()
	m.stop = sync.OnceFunc(func() { stop(); <-done })
	t.Cleanup(func() { m.stop(); c.Close() })
	return m
}

// leads waits until a candidate leads.
func (m *member) leads(t *testing.T) *Term {
	t.Helper()
	await.Until(t, func() bool { term := m.term.Load(); return term != nil && term.Valid() }, func() string { return "it does not lead" })
	return m.term.Load()
}

// watched lets a candidate make some attempts, in which others lead.
func (m *member) watched(t *testing.T) {
	t.Helper()
	n := m.seen.Load()
	await.Until(t, func() bool { return m.seen.Load() > n+5 }, func() string { return "it makes no attempts" })
	if m.term.Load() != nil {
		t.Error("it leads, too")
	}
}

// A leader that cannot renew stops before another one leads, and does not lead again while that one renews.
func TestExpire(t *testing.T) {
	a := join(t, "expire", "a")
	if term := a.leads(t); !term.Released {
		t.Error("the first leader has a former one")
	}
	b := join(t, "expire", "b")
	b.watched(t)
	term := a.term.Load()
	a.wire.Cut()
	if next := b.leads(t); next.Released {
		t.Error("the former leader's requests are not known")
	}
	if term.Valid() || a.term.Load() != nil {
		t.Error("both lead")
	}
	a.wire.Join(t)
	a.watched(t)
	if !b.term.Load().Valid() {
		t.Error("none leads")
	}
}

// A leader that stops itself is followed at once, by one that knows whether all of its requests were answered.
func TestStop(t *testing.T) {
	a := join(t, "stop", "a")
	a.answered.Store(true)
	a.leads(t)
	b := join(t, "stop", "b")
	b.watched(t)
	// The Lease changes, as by a renewal whose answer does not arrive any more.
	server.Must(t, http.MethodPatch, "/apis/coordination.k8s.io/v1/namespaces/default/leases/stop", string(rest.MergePatch), map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"test": "changed"}},
	})
	a.stop()
	if !b.leads(t).Released {
		t.Error("the former leader released the lease")
	}
	c := join(t, "stop", "c")
	c.watched(t)
	b.stop() // it has a request without an answer
	if c.leads(t).Released {
		t.Error("the former leader did not release the lease")
	}
}

// Changes of the Lease by other programs: a label is added, and the holder continues. It is deleted, or another holder
// is written, and the holder stops.
func TestChanged(t *testing.T) {
	const path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/changed"
	a := join(t, "changed", "a")
	term := a.leads(t)
	server.Must(t, http.MethodPatch, path, rest.MergePatch, map[string]any{"metadata": map[string]any{"labels": map[string]string{"x": "y"}}})
	until := term.Until()
	await.Until(t, func() bool { return term.Until().After(until.Add(time.Second)) }, func() string { return "the lease is not renewed" })
	if a.term.Load() != term {
		t.Error("the term ended")
	}
	server.Must(t, http.MethodPatch, path, rest.MergePatch, map[string]any{"spec": map[string]any{"holderIdentity": "other", "leaseDurationSeconds": 1}})
	await.Until(t, func() bool { now := a.term.Load(); return now != nil && now != term }, func() string { return "the term does not end" })
	if term = a.term.Load(); term.Released {
		t.Error("the other holder's requests are not known")
	}
	server.Must(t, http.MethodDelete, path, "", nil)
	await.Until(t, func() bool { now := a.term.Load(); return now != nil && now != term }, func() string { return "the term does not end" })
}

// Wrong times are refused with their values.
func TestCheck(t *testing.T) {
	good := Options{Namespace: "ns", Name: "n", Duration: 3 * time.Second, Deadline: 2 * time.Second, Retry: time.Second}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*Options){
		func(o *Options) { o.Duration = 2 * time.Second },
		func(o *Options) { o.Duration = 3500 * time.Millisecond },
		func(o *Options) { o.Duration = 48 * time.Hour },
		func(o *Options) { o.Deadline = time.Second },
		func(o *Options) { o.Retry = 0 },
		func(o *Options) { o.Name = "a/b" },
		func(o *Options) { o.Namespace = "" },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil {
			t.Errorf("%d: %s is accepted", i, fmt.Sprint(o.Duration, o.Deadline, o.Retry, o.Namespace, o.Name))
		}
	}
}
