package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
)

// admin sends requests to etcd directly, as an administrator does.
type admin struct {
	tb testing.TB
	c  *client
}

func newAdmin(tb testing.TB, url string) admin {
	tb.Helper()
	c, err := newClient(Options{Endpoints: []string{url}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.web.CloseIdle)
	return admin{tb, c}
}

func (a admin) do(path string, in, out any) {
	a.tb.Helper()
	if err := a.c.call(a.tb.Context(), path, in, out); err != nil {
		a.tb.Fatal(err)
	}
	a.c.web.CloseIdle()
}

func (a admin) put(key, value string, lease int64) {
	a.tb.Helper()
	a.do("/v3/kv/put", putRequest{Key: []byte(key), Value: []byte(value), Lease: lease}, &struct{}{})
}

func (a admin) remove(key string) {
	a.tb.Helper()
	a.do("/v3/kv/deleterange", deleteRequest{Key: []byte(key)}, &struct{}{})
}

func (a admin) list(prefix string) rangeResponse {
	a.tb.Helper()
	var got rangeResponse
	a.do("/v3/kv/range", rangeRequest{Key: []byte(prefix), RangeEnd: end(prefix)}, &got)
	return got
}

func (a admin) grant(ttl int64) int64 {
	a.tb.Helper()
	var got leaseResponse
	a.do("/v3/lease/grant", leaseRequest{TTL: ttl}, &got)
	return got.ID
}

// open opens the registry of a node, as its agent does.
func open(tb testing.TB, o Options) *Registry {
	tb.Helper()
	r, err := Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

const article = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`

func TestRegistry(t *testing.T) {
	server := etcdtest.Start(t)
	worlds := 0
	clustertest.Suite(t, func(t *testing.T, conf string) *clustertest.World {
		worlds++
		prefix := fmt.Sprintf("/world%d/network", worlds)
		a := newAdmin(t, server.URL)
		a.put(prefix+"/config", conf, 0)
		return &clustertest.World{
			Open: func(tb testing.TB, name string, owner *cluster.Owner) cluster.Registry {
				return open(tb, Options{Endpoints: []string{server.URL}, Prefix: prefix, Node: name, Owner: owner})
			},
			Anonymous: true,
			Writes: func(testing.TB) string {
				var b strings.Builder
				for _, kv := range a.list(prefix + "/subnets/").KVs {
					fmt.Fprintf(&b, "%s at %d on %x\n", kv.Key, kv.ModRevision, kv.Lease)
				}
				return b.String()
			},
			Alter: func(tb testing.TB, n cluster.Node) {
				value, err := encode(&n)
				if err != nil {
					tb.Fatal(err)
				}
				a.put(prefix+"/subnets/"+n.Name, string(value), 0)
			},
			Remove: func(_ testing.TB, n cluster.Node) { a.remove(prefix + "/subnets/" + n.Name) },
			Hostile: func(testing.TB) []string {
				good := `{"PublicIP":"192.0.2.66","BackendType":"vxlan","BackendData":{"VtepMAC":"02:00:00:00:00:66"}}`
				var names []string
				for name, value := range map[string]string{
					"10.244.66.0-24": "", "10.244.67.0-24": `{"PublicIP":"192.0.2.`, "10.244.68.0-24": "[]", "10.244.69.0-24": "\x00\xff",
					"10.244.70.0-24": strings.Repeat(" ", maxRecord+1), "10.244.71.0-24": strings.Repeat(`{"BackendData":`, 20000),
					"10.244.72.0-24": `{"PublicIP":"fd00::1"}`, "10.244.73.0-24": `{"PublicIP":"127.0.0.1"}`, "10.244.74.0-24": `{"PublicIP":"192.0.2.66","PublicIPv6":"10.0.0.1"}`,
					"10.244.75.0-24": `{"PublicIP":7}`, "10.244.76.1-24": good, "0.0.0.0-0": good, "10.244.0.0-16": good, "198.51.100.0-24": good, "10.244.77.0-33": good,
					"10.244.78.0-24&10.244.79.0-24": good, "10.244.80.0-24&": good, "fd00::-64": good, "x": good, "10.244.81.0-24/x": good, "\xff\xfe": good,
				} {
					a.put(prefix+"/subnets/"+name, value, 0)
					names = append(names, name)
				}
				// As base64, nine records of 1.4 MB exceed the bound of a reply.
				for i := range 9 {
					name := fmt.Sprintf("10.244.%d.0-24", 100+i)
					a.put(prefix+"/subnets/"+name, strings.Repeat("x", 1400<<10), 0)
					names = append(names, name)
				}
				// A key that is not a subnet is ignored.
				a.put(prefix+"/other", "x", 0)
				return names
			},
			Text: func(_ testing.TB, collection, name string, text []byte) {
				a.put(prefix+"-"+collection+"/"+name, string(text), 0)
			},
			Down: func(tb testing.TB) func() {
				server.Kill()
				return func() { server.Up(tb) }
			},
		}
	})
}

func TestOpen(t *testing.T) {
	good := "http://127.0.0.1:2379"
	for what, o := range map[string]Options{
		"etcd endpoints": {}, "etcd endpoint: ": {Endpoints: []string{"127.0.0.1:2379"}}, "etcd endpoint:": {Endpoints: []string{"http://user:secret@127.0.0.1:2379"}},
		"etcd prefix": {Endpoints: []string{good}, Prefix: "relative"}, "one is given without": {Endpoints: []string{good}, Username: "root"},
		"renewal margin": {Endpoints: []string{good}, RenewMargin: leaseTTL},
	} {
		_, err := Open(o)
		if !errors.Is(err, cluster.ErrInvalid) || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Registry reads flanneld's records, and writes records that flanneld can read.
func TestFlannel(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", `{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:1::/48"}`, 0)
	a.put(DefaultPrefix+"/subnets/10.244.7.0-24&fd00:1:0:7::-64", `{"PublicIP":"172.17.8.102","PublicIPv6":"2001:db8::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"8e:10:e8:7b:5c:2d"},"BackendV6Data":{"VNI":1,"VtepMAC":"8e:10:e8:7b:5c:2e"}}`, a.grant(86400))
	a.put(DefaultPrefix+"/subnets/10.244.9.0-24", `{"PublicIP":"172.17.8.103","PublicIPv6":null,"BackendType":"host-gw","BackendData":null}`, a.grant(86400))
	r := open(t, Options{Endpoints: []string{server.URL}})
	seen := follow(t, r)
	s := seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 2 && len(s.Faults) == 0 })
	if n := s.Nodes[0]; n.PublicIPv6 != netip.MustParseAddr("2001:db8::2") || !slices.Equal(n.PodCIDRs, []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("fd00:1:0:7::/64")}) {
		t.Errorf("%+v", n)
	}
	want := cluster.Node{
		PublicIP: netip.MustParseAddr("172.17.8.101"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.5.0/24"), netip.MustParsePrefix("fd00:1:0:5::/64")},
		BackendType: "vxlan", BackendData: []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`),
	}
	if _, err := r.Acquire(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	got := a.list(DefaultPrefix + "/subnets/10.244.5.").KVs
	if len(got) != 1 || string(got[0].Key) != DefaultPrefix+"/subnets/10.244.5.0-24&fd00:1:0:5::-64" || got[0].Lease == 0 ||
		string(got[0].Value) != `{"PublicIP":"172.17.8.101","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}` {
		t.Fatalf("%+v", got)
	}
	// A flanneld with this node's address ran before. The node continues with its subnet and lease.
	flannel := a.grant(86400)
	a.put(DefaultPrefix+"/subnets/10.244.20.0-24&fd00:1:0:20::-64", `{"PublicIP":"172.17.8.104","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:04"}}`, flannel)
	want = cluster.Node{PublicIP: netip.MustParseAddr("172.17.8.104"), BackendType: "vxlan", BackendData: []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:05"}`)}
	next := open(t, Options{Endpoints: []string{server.URL}})
	if n, err := next.Acquire(t.Context(), want); err != nil || n.Name != "10.244.20.0-24&fd00:1:0:20::-64" {
		t.Fatalf("%+v, %v", n, err)
	}
}

// follow watches and returns a function that waits for a snapshot.
func follow(t *testing.T, r *Registry) func(func(*cluster.Snapshot) bool) *cluster.Snapshot {
	t.Helper()
	updates := make(chan cluster.Update)
	go func() {
		_ = clustertest.Watch(t.Context(), r.Watch, func(u cluster.Update) {
			select {
			case updates <- u:
			case <-t.Context().Done():
			}
		})
	}()
	return func(ok func(*cluster.Snapshot) bool) *cluster.Snapshot {
		t.Helper()
		for u := range updates {
			if u.Err != nil {
				t.Logf("meanwhile: %v", u.Err)
			} else if ok(u.Snapshot) {
				return u.Snapshot
			}
		}
		return nil
	}
}

func node(i int) cluster.Node {
	return cluster.Node{
		PublicIP: netip.AddrFrom4([4]byte{192, 0, byte(2 + i>>8), byte(i)}), BackendType: "vxlan",
		BackendData: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, i>>8, i&255),
	}
}

// A key without a lease is a reservation, also after a change.
func TestReservation(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	key := DefaultPrefix + "/subnets/10.244.50.0-24"
	a.put(key, `{"PublicIP":"192.0.2.1"}`, 0)
	r := open(t, Options{Endpoints: []string{server.URL}})
	for range 2 {
		n, err := r.Acquire(t.Context(), node(1))
		if err != nil || n.Name != "10.244.50.0-24" {
			t.Fatalf("%+v, %v", n, err)
		}
	}
	got := a.list(key).KVs
	if len(got) != 1 || got[0].Lease != 0 || !bytes.Contains(got[0].Value, []byte("02:00:00:00:00:01")) {
		t.Fatalf("%+v", got)
	}
	if len(a.leases()) != 0 {
		t.Errorf("leases are left: %v", a.leases())
	}
}

func (a admin) leases() []leaseResponse {
	a.tb.Helper()
	var got struct{ Leases []leaseResponse }
	a.do("/v3/lease/leases", struct{}{}, &got)
	return got.Leases
}

// An expired lease removes its record. The node publishes again with the same subnet.
func TestDeadLease(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	r := open(t, Options{Endpoints: []string{server.URL}})
	seen := follow(t, r)
	one, err := r.Acquire(t.Context(), node(1))
	if err != nil {
		t.Fatal(err)
	}
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 1 })
	leases := a.leases()
	if len(leases) != 1 {
		t.Fatalf("leases %v", leases)
	}
	a.do("/v3/lease/revoke", leaseRequest{ID: leases[0].ID}, &struct{}{})
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 0 })
	again, err := r.Acquire(t.Context(), one)
	if err != nil || !again.Same(&one) {
		t.Fatalf("%+v, %v", again, err)
	}
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 1 })
	// Release leaves nothing.
	if err := r.Release(t.Context()); err != nil || len(a.leases()) != 0 || len(a.list(DefaultPrefix+"/subnets/").KVs) != 0 {
		t.Fatalf("%v, leases %v", err, a.leases())
	}
}

// A lease of a few seconds lives while Watch runs.
func TestRenewal(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	short := a.grant(12) // renewed after 4 s, which leaves 8 s on a busy machine
	a.put(DefaultPrefix+"/subnets/10.244.50.0-24", `{"PublicIP":"192.0.2.1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}`, short)
	r := open(t, Options{Endpoints: []string{server.URL}})
	seen := follow(t, r)
	if n, err := r.Acquire(t.Context(), node(1)); err != nil || n.Name != "10.244.50.0-24" {
		t.Fatalf("%+v, %v", n, err)
	}
	// A record with a longer lease that is not renewed expires, and this node's still exists.
	a.put(DefaultPrefix+"/subnets/10.244.60.0-24", `{"PublicIP":"192.0.2.2"}`, a.grant(14))
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) == 2 })
	seen(func(s *cluster.Snapshot) bool { return len(s.Nodes) < 2 })
	if got := a.list(DefaultPrefix + "/subnets/").KVs; len(got) != 1 || got[0].Lease != short {
		t.Fatalf("%+v", got)
	}
}

// Watch lists again after a compaction.
func TestCompaction(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", article, 0)
	r := open(t, Options{Endpoints: []string{server.URL}})
	v := newView(r, &cluster.Relay{})
	if err := v.watch.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		a.put(DefaultPrefix+"/subnets/10.244.60.0-24", fmt.Sprintf(`{"PublicIP":"192.0.2.%d"}`, i+1), 0)
	}
	now := a.list(DefaultPrefix).Header.Revision
	a.do("/v3/kv/compaction", map[string]any{"revision": fmt.Sprint(now), "physical": true}, &struct{}{})
	if err := v.watch.follow(t.Context()); !errors.Is(err, errCompacted) || v.watch.listed || v.watch.lost {
		t.Fatalf("%v at %d", err, v.watch.at)
	}
	if err := v.watch.list(t.Context()); err != nil || v.watch.at != now || len(v.Table.Snapshot().Nodes) != 1 {
		t.Fatalf("%v at %d", err, v.watch.at)
	}
}

// With dual stack, no two nodes get the same subnet of one family.
func TestPairs(t *testing.T) {
	server := etcdtest.Start(t)
	a := newAdmin(t, server.URL)
	a.put(DefaultPrefix+"/config", `{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:1::/56","IPv6SubnetLen":60}`, 0)
	const count = 12
	errs := make(chan error, count)
	for i := range count {
		r := open(t, Options{Endpoints: []string{server.URL}})
		go func() {
			_, err := r.Acquire(t.Context(), node(i+1))
			errs <- err
		}()
	}
	for range count {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	held := map[netip.Prefix]int{}
	for _, kv := range a.list(DefaultPrefix + "/subnets/").KVs {
		subnets, err := subnetsOf(strings.TrimPrefix(string(kv.Key), DefaultPrefix+"/subnets/"))
		if err != nil || len(subnets) != 2 {
			t.Fatal(subnets, err)
		}
		for _, p := range subnets {
			held[p]++
		}
	}
	if len(held) != 2*count {
		t.Errorf("%d subnets for %d nodes: %v", len(held), count, held)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("10.244.5.0-24&fd00:1:0:5::-64", []byte(`{"PublicIP":"172.17.8.101","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}`))
	f.Add("0.0.0.0-0&fd00::-64", []byte(`{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1"}`))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		n, err := decode(name, value)
		if err != nil {
			return
		}
		out, err := encode(&n)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(keyOf(n.PodCIDRs), out)
		again.Name = n.Name
		if err != nil || !again.Same(&n) {
			t.Fatalf("%+v as %s is %+v, %v", n, out, again, err)
		}
	})
}
