package etcd

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
)

// A failed renewal of a lease is tried again soon, not after the time of a successful one.
func TestRenewalFails(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var refusals, warnings atomic.Int32
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/lease/keepalive") && refusals.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.CloseClientConnections()
	short := a.grant(12) // renewed after 4 s; a second pause of 4 s would be too long
	a.put(subnetKey(50), `{"PublicIP":"192.0.2.1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}`, short)
	r := open(t, Options{Endpoints: []string{front.URL}, RenewMargin: time.Second, Warn: func(string) { warnings.Add(1) }})
	seen := follow(t, r)
	if n, err := r.Acquire(t.Context(), node(1)); err != nil || n.Name != "10.244.50.0-24" {
		t.Fatalf("%+v, %v", n, err)
	}
	refusals.Store(2)
	// A record on a longer lease that is not renewed ends, and ours still exists.
	a.put(subnetKey(60), `{"PublicIP":"192.0.2.2"}`, a.grant(16))
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 2 })
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) < 2 })
	if got := a.list(DefaultPrefix + "/subnets/").KVs; len(got) != 1 || got[0].Lease != short {
		t.Fatalf("%+v", got)
	}
	if n := warnings.Load(); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
}

// An etcd that lost its data cuts no node from another one: until the nodes have published again, the others keep them,
// and a node without an agent stays for the grace time, unless another one gets its subnet.
func TestEmptied(t *testing.T) {
	for what, empty := range map[string]func(t *testing.T, s *etcdtest.Server, a admin){
		"keys deleted": func(_ *testing.T, _ *etcdtest.Server, a admin) {
			a.do("/v3/kv/deleterange", deleteRequest{Key: []byte(DefaultPrefix), RangeEnd: end(DefaultPrefix)}, &struct{}{})
		},
		"made anew": func(t *testing.T, s *etcdtest.Server, _ admin) {
			s.Kill()
			if err := os.RemoveAll(s.Data); err != nil {
				t.Fatal(err)
			}
			s.Up(t)
		},
	} {
		t.Run(what, func(t *testing.T) {
			server := etcdtest.Start(t)
			a := newAdmin(t, server.URL)
			a.put(DefaultPrefix+"/config", article, 0)
			a.put(subnetKey(240), `{"PublicIP":"192.0.2.240"}`, 0)
			a.put(subnetKey(241), `{"PublicIP":"192.0.2.241"}`, 0)
			var all []*lossless
			for i := range 12 {
				all = append(all, newLossless(t, server.URL, i))
			}
			for _, l := range all {
				l.until(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 14 })
				l.complete.Store(true)
			}
			empty(t, server, a)
			for _, l := range all {
				l.until(func(s *cluster.Snapshot) bool { return len(s.Nodes) < 14 || s.Faults[configName] != nil })
			}
			a.put(DefaultPrefix+"/config", article, 0)
			// All have published themselves, and all still have both nodes without an agent.
			for _, l := range all {
				await.Until(t, func() bool { return len(a.list(DefaultPrefix+"/subnets/").KVs) == 12 }, func() string { return "not all nodes are in etcd" })
				l.until(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 14 && len(s.Faults) == 0 })
				l.complete.Store(false)
			}
			a.put(subnetKey(240), `{"PublicIP":"192.0.2.99"}`, 0)
			a.put(subnetKey(251), `{"PublicIP":"192.0.2.241"}`, 0)
			for _, l := range all {
				l.until(func(s *cluster.Snapshot) bool {
					return len(s.Nodes) == 14 && slices.ContainsFunc(s.Nodes, func(n *cluster.Node) bool { return n.Name == "10.244.251.0-24" })
				})
			}
		})
	}
}

// The grace time of lost nodes ends when etcd reports that all changes were sent.
func TestGrace(t *testing.T) {
	server := etcdtest.Start(t, "--experimental-watch-progress-notify-interval", "1s")
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	a.put(subnetKey(60), `{"PublicIP":"192.0.2.60"}`, 0)
	r := open(t, Options{Endpoints: []string{server.URL}})
	r.grace = time.Second
	seen := follow(t, r)
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 1 })
	a.do("/v3/kv/deleterange", deleteRequest{Key: []byte(DefaultPrefix), RangeEnd: end(DefaultPrefix)}, &struct{}{})
	s := seen(func(s *cluster.Snapshot) bool { return s.Faults[configName] != nil })
	if len(s.Nodes) != 1 || s.Config == nil {
		t.Errorf("without a configuration: %+v", s)
	}
	a.put(subnetKey(61), `{"PublicIP":"192.0.2.61"}`, 0)
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 2 })
	a.put(DefaultPrefix+"/config", article, 0)
	seen(func(s *cluster.Snapshot) bool {
		return len(s.Nodes) == 1 && s.Nodes[0].Name == "10.244.61.0-24" && len(s.Faults) == 0
	})

	// The first message of a stream, and changes, may precede the record of a lost node.
	v := newView(r, cluster.NewRelay())
	v.watch.reported, v.watch.names = true, map[string]bool{}
	c, _, err := cluster.ParseSubnetConfig([]byte(article))
	if err != nil {
		t.Fatal(err)
	}
	v.Table.SetConfig(c)
	v.Put(entry{"10.244.60.0-24", keyValue{Value: []byte(`{"PublicIP":"192.0.2.60"}`)}}, true)
	v.Table.Lose(nil, "")
	for i, c := range []struct {
		m    watchResponse
		want int
	}{{watchResponse{Created: true}, 1}, {watchResponse{Events: []event{{}}}, 1}, {watchResponse{}, 0}} {
		if err := v.watch.apply(t.Context(), &c.m, i == 0); err != nil || len(v.Table.Snapshot().Nodes) != c.want {
			t.Errorf("message %d leaves %+v, %v", i, v.Table.Snapshot(), err)
		}
	}
}

// lossless is a node that publishes itself again whenever its record is missing, as an agent does.
type lossless struct {
	t *testing.T
	// complete is true while the snapshots must have all other nodes.
	complete atomic.Bool
	mu       sync.Mutex
	last     *cluster.Snapshot
}

func newLossless(t *testing.T, url string, i int) *lossless {
	t.Helper()
	r := open(t, Options{Endpoints: []string{url}})
	own, err := r.Acquire(t.Context(), node(i+1))
	if err != nil {
		t.Fatal(err)
	}
	l := &lossless{t: t}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	missing := make(chan struct{}, 1)
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-missing:
			}
			for ctx.Err() == nil {
				if _, err := r.Acquire(ctx, own); err == nil {
					break
				}
			}
		}
	})
	running.Go(func() {
		_ = clustertest.Watch(ctx, r.Watch, func(u cluster.Update) {
			if u.Snapshot == nil {
				return
			}
			has := slices.ContainsFunc(u.Snapshot.Nodes, func(n *cluster.Node) bool { return n.Name == own.Name })
			if !has {
				select {
				case missing <- struct{}{}:
				default: // it is being published
				}
			}
			if others := len(u.Snapshot.Nodes); l.complete.Load() && (others < 13 || has && others < 14) {
				t.Errorf("%s has %d nodes", own.Name, others)
			}
			l.mu.Lock()
			l.last = u.Snapshot
			l.mu.Unlock()
		})
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return l
}

// until waits for a state of the last snapshot.
func (l *lossless) until(is func(*cluster.Snapshot) bool) {
	l.t.Helper()
	now := func() *cluster.Snapshot {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.last
	}
	await.Until(l.t, func() bool { s := now(); return s != nil && is(s) }, func() string { return fmt.Sprintf("%+v", now()) })
}

// A record that another program wrote over the node's own without a lease is put back with a lease.
// The node keeps its subnet.
func TestOverwritten(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	for _, watched := range []bool{false, true} {
		r := open(t, Options{Endpoints: []string{server.URL}})
		if watched {
			follow(t, r)(func(*cluster.Snapshot) bool { return true })
		}
		one, err := r.Acquire(t.Context(), node(1))
		if err != nil {
			t.Fatal(err)
		}
		a.put(DefaultPrefix+"/subnets/"+one.Name, `{"PublicIP":"192.0.2.99","BackendType":"vxlan"}`, 0)
		again, err := r.Acquire(t.Context(), node(1))
		if err != nil || !again.Same(&one) {
			t.Errorf("watched %t: %+v, %v; had %+v", watched, again, err, one)
		}
		if got := a.list(DefaultPrefix + "/subnets/").KVs; len(got) != 1 || got[0].Lease == 0 {
			t.Errorf("watched %t: %+v", watched, got)
		}
	}
}

// Of two records with the node's address, the one with the node's previous subnet counts.
func TestTwoRecords(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	for _, i := range []int{50, 60} {
		a.put(subnetKey(i), `{"PublicIP":"192.0.2.1"}`, 0)
	}
	owner := clustertest.NewMachine("node-1", netip.MustParsePrefix("10.244.60.0/24")).Owner(t)
	r := open(t, Options{Endpoints: []string{server.URL}, Owner: owner})
	n, err := r.Acquire(t.Context(), node(1))
	if err != nil || n.Name != "10.244.60.0-24" {
		t.Errorf("%+v, %v", n, err)
	}
	if got := a.list(DefaultPrefix + "/subnets/").KVs; len(got) != 1 {
		t.Errorf("%+v", got)
	}
}
