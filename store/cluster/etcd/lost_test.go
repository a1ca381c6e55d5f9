package etcd

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
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

// An etcd that lost its data and its configuration keeps the known nodes. When the configuration is
// back, the nodes are those that etcd has.
func TestEmptied(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	a.put(subnetKey(60), `{"PublicIP":"192.0.2.60"}`, 0)
	r := open(t, Options{Endpoints: []string{server.URL}})
	seen := follow(t, r)
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 1 })
	a.do("/v3/kv/deleterange", deleteRequest{Key: []byte(DefaultPrefix), RangeEnd: end(DefaultPrefix)}, &struct{}{})
	s := seen(func(s *cluster.Snapshot) bool { return s.Faults[configFault] != nil })
	if len(s.Nodes) != 1 || s.Config == nil {
		t.Errorf("without a configuration: %+v", s)
	}
	a.put(subnetKey(61), `{"PublicIP":"192.0.2.61"}`, 0)
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 2 })
	a.put(DefaultPrefix+"/config", article, 0)
	seen(func(s *cluster.Snapshot) bool {
		return len(s.Nodes) == 1 && s.Nodes[0].Name == "10.244.61.0-24" && len(s.Faults) == 0
	})
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
	r := open(t, Options{Endpoints: []string{server.URL}, Previous: []netip.Prefix{netip.MustParsePrefix("10.244.60.0/24")}})
	n, err := r.Acquire(t.Context(), node(1))
	if err != nil || n.Name != "10.244.60.0-24" {
		t.Errorf("%+v, %v", n, err)
	}
	if got := a.list(DefaultPrefix + "/subnets/").KVs; len(got) != 1 {
		t.Errorf("%+v", got)
	}
}
