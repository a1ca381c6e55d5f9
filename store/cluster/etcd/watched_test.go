package etcd

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
)

// The table of a Watch gives the same result as a list. A list is needed without a Watch, or if the
// table has an invalid record.
func TestReadWatched(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	for i := range 3 {
		if _, err := open(t, Options{Endpoints: []string{server.URL}}).Acquire(t.Context(), node(10+i)); err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, Options{Endpoints: []string{server.URL}})
	want := node(1)
	if s, err := r.readWatched(t.Context(), &want); s != nil || err != nil {
		t.Fatalf("without a Watch: %+v, %v", s, err)
	}
	seen := follow(t, r)
	compare := func(count int) {
		t.Helper()
		seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == count })
		got, err := r.readWatched(t.Context(), &want)
		listed, listErr := r.read(t.Context(), &want)
		if err != nil || listErr != nil || !reflect.DeepEqual(got, listed) {
			t.Errorf("watched %+v, %v\nlisted %+v, %v", got, err, listed, listErr)
		}
	}
	compare(3)
	one, err := r.Acquire(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	// The Watch may not have reported the record yet.
	if again, err := r.Acquire(t.Context(), want); err != nil || !again.Same(&one) {
		t.Errorf("%+v, %v", again, err)
	}
	compare(4)
	want.PublicIP = netip.MustParseAddr("192.0.2.200") // only the lease identifies the record
	if again, err := r.Acquire(t.Context(), want); err != nil || again.Name != one.Name {
		t.Errorf("with another address: %+v, %v", again, err)
	}
	compare(4)
	a.put(DefaultPrefix+"/subnets/10.244.200.0-24", "{", 0)
	seen(func(s *cluster.Snapshot) bool { return len(s.Faults) == 1 })
	if s, err := r.readWatched(t.Context(), &want); s != nil || err != nil {
		t.Errorf("with a fault: %+v, %v", s, err)
	}
}

// With an outdated Watch a node still gets its subnet, and does not get another node's.
func TestReadWatchedStale(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	other := open(t, Options{Endpoints: []string{server.URL}})
	held, err := other.Acquire(t.Context(), node(2))
	if err != nil {
		t.Fatal(err)
	}
	config, err := configOf(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, Options{Endpoints: []string{server.URL}})
	stale := &cluster.Table{}
	stale.SetConfig(config)
	r.watched.Store(stale)
	want := node(1)
	want.PodCIDRs = held.PodCIDRs
	if _, err := r.Acquire(t.Context(), want); !errors.Is(err, cluster.ErrConflict) {
		t.Errorf("a subnet that another took: %v", err)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	stale.Put(held.Name, held, nil)
	if n, err := r.Acquire(t.Context(), want); err != nil || n.Name != held.Name {
		t.Errorf("a subnet that is free again: %+v, %v", n, err)
	}
}

// TestConfigurations: each of many configurations in a row counts at once, also after invalid ones, and after an invalid one at the
// start. With a growing pause before each, the test would end by its deadline.
func TestConfigurations(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	put := func(conf string) { t.Helper(); a.put(DefaultPrefix+"/config", conf, 0) }
	put(`{}`)
	seen := follow(t, open(t, Options{Endpoints: []string{server.URL}}))
	deadline := time.AfterFunc(await.Patience, func() { panic("the configurations come too late") })
	defer deadline.Stop()
	for i := range 20 {
		network := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i), 0, 0}), 16)
		put(`{"Network":"` + network.String() + `"}`)
		seen(func(s *cluster.Snapshot) bool { return s.Config.Network == network && s.Faults[configName] == nil })
		put(`{"Network":"10.244.0.0/33"}`)
		seen(func(s *cluster.Snapshot) bool { return s.Faults[configName] != nil })
	}
}
