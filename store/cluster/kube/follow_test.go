//go:build kube

package kube

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
	"github.com/cnibox/cnibox/test/await"
)

var cidr1, cidr2 = netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.244.2.0/24")

func wanted() cluster.Node {
	return cluster.Node{
		PublicIP: netip.MustParseAddr("192.0.2.1"), BackendType: "vxlan",
		BackendData: []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`),
	}
}

// watched returns the updates of a running Watch.
func watched(t *testing.T, r *Registry) <-chan cluster.Update {
	t.Helper()
	updates := make(chan cluster.Update)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = clustertest.Watch(ctx, r.Watch, func(u cluster.Update) {
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() { stop(); <-done })
	return updates
}

// until waits for an update that ok accepts.
func until(t *testing.T, updates <-chan cluster.Update, what string, ok func(cluster.Update) bool) {
	t.Helper()
	deadline := time.After(await.Patience)
	for {
		select {
		case u := <-updates:
			if ok(u) {
				return
			}
			if u.Err != nil {
				t.Logf("meanwhile: %v", u.Err)
			}
		case <-deadline:
			t.Fatalf("no update with %s", what)
		}
	}
}

func names(u cluster.Update) (out []string) {
	if u.Snapshot != nil {
		for _, n := range u.Snapshot.Nodes {
			out = append(out, n.Name)
		}
	}
	return out
}

// acquired calls Acquire after every update until it succeeds, as the agent does.
func acquired(t *testing.T, r *Registry, updates <-chan cluster.Update) (got cluster.Node) {
	t.Helper()
	until(t, updates, "the change for which Acquire waits", func(u cluster.Update) bool {
		var err error
		got, err = r.Acquire(t.Context(), wanted())
		if err != nil && !errors.Is(err, cluster.ErrNotAssigned) && !errors.Is(err, cluster.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	return got
}

// A node first has no object, then no pod network, then one. Then the object is
// recreated with another one. Then an operator removes the annotations.
func TestOwnNode(t *testing.T) {
	l := newLab(t, server, networkConf)
	r := l.open(t, "node-1")
	updates := watched(t, r)
	until(t, updates, "no nodes", func(u cluster.Update) bool { return u.Snapshot != nil })
	if _, err := r.Acquire(t.Context(), wanted()); !errors.Is(err, cluster.ErrNotAssigned) || !strings.Contains(err.Error(), "node-1") {
		t.Fatalf("without an object: %v", err)
	}
	l.make(t, "node-1")
	until(t, updates, "the object", func(u cluster.Update) bool {
		_, err := r.Acquire(t.Context(), wanted())
		if !errors.Is(err, cluster.ErrNotAssigned) {
			t.Fatalf("without a pod network: %v", err)
		}
		return strings.Contains(err.Error(), "podCIDRs")
	})
	l.assign(t, "node-1", cidr1)
	if got := acquired(t, r, updates); !slices.Equal(got.PodCIDRs, []netip.Prefix{cidr1}) {
		t.Fatalf("got %+v", got)
	}
	until(t, updates, "the node", func(u cluster.Update) bool { return slices.Equal(names(u), []string{"node-1"}) })

	l.remove(t, "node-1")
	until(t, updates, "no node", func(u cluster.Update) bool { return u.Snapshot != nil && len(u.Snapshot.Nodes) == 0 })
	l.assign(t, "node-1", cidr2)
	if got := acquired(t, r, updates); !slices.Equal(got.PodCIDRs, []netip.Prefix{cidr2}) {
		t.Fatalf("got %+v", got)
	}
	until(t, updates, "the node", func(u cluster.Update) bool { return slices.Equal(names(u), []string{"node-1"}) })
	l.strip(t, "node-1")
	until(t, updates, "the node stripped", func(u cluster.Update) bool { return u.Snapshot != nil && len(u.Snapshot.Nodes) == 0 })
	if _, err := r.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	until(t, updates, "the node back", func(u cluster.Update) bool { return slices.Equal(names(u), []string{"node-1"}) })
}

// A watch that cannot continue, because the server was down and its store has compacted the changes,
// reads everything again, and removes deleted nodes.
func TestExpired(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	l.assign(t, "node-2", cidr2)
	r, other := l.open(t, "node-1"), l.open(t, "node-2")
	for _, r := range []*Registry{r, other} {
		if _, err := r.Acquire(t.Context(), wanted()); err != nil {
			t.Fatal(err)
		}
	}
	updates := watched(t, r)
	until(t, updates, "both", func(u cluster.Update) bool { return len(names(u)) == 2 })
	l.wire.Cut()
	until(t, updates, "an error", func(u cluster.Update) bool { return errors.Is(u.Err, cluster.ErrUnavailable) })
	l.remove(t, "node-2")
	l.assign(t, "node-3", netip.MustParsePrefix("10.244.3.0/24"))
	var before string
	for range 3 { // the last one is compacted too
		l.make(t, "other")
		before = l.node(t, "other").Metadata.ResourceVersion
		l.remove(t, "other")
	}
	l.s.Compact(t)
	l.s.StopAPI()
	if err := l.s.StartAPI(); err != nil {
		t.Fatal(err)
	}
	l.wire.Join(t)
	until(t, updates, "the first node alone", func(u cluster.Update) bool { return slices.Equal(names(u), []string{"node-1"}) })
	err := rest.Watch(t.Context(), r.client, nodes, rest.Since{Version: before}, func(rest.Event[*rest.Node]) {})
	if !errors.Is(err, rest.ErrExpired) {
		t.Errorf("this was no test: the server goes on from before the compaction: %v", err)
	}
}

// The server stops during a watch and comes back: nothing is lost.
func TestServerRestarts(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	l.assign(t, "node-2", cidr2)
	r, other := l.open(t, "node-1"), l.open(t, "node-2")
	if _, err := r.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	updates := watched(t, r)
	until(t, updates, "the first", func(u cluster.Update) bool { return len(names(u)) == 1 })
	l.s.StopAPI()
	until(t, updates, "an error", func(u cluster.Update) bool { return errors.Is(u.Err, cluster.ErrUnavailable) })
	if _, err := other.Acquire(t.Context(), wanted()); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("while it is down: %v", err)
	}
	if err := l.s.StartAPI(); err != nil {
		t.Fatal(err)
	}
	until(t, updates, "the first again", func(u cluster.Update) bool { return len(names(u)) == 1 })
	if _, err := other.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	until(t, updates, "both", func(u cluster.Update) bool { return len(names(u)) == 2 })
}

// A token that was renewed in its file is used. A refused one is reported until then.
func TestTokenRenewed(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	dir := t.TempDir()
	put := func(token string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "token.new"), []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "token.new"), filepath.Join(dir, "token")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), l.s.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	first, removeFirst := l.s.ServiceAccount(t, "first")
	second, removeSecond := l.s.ServiceAccount(t, "second")
	defer removeSecond()
	put(first)
	host, port, _ := strings.Cut(l.wire.Address, ":")
	c, err := rest.Open(rest.InCluster(host, port, dir))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := Open(Options{Client: c, Node: "node-1", Config: l.config})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	updates := watched(t, r)
	until(t, updates, "the node", func(u cluster.Update) bool { return len(names(u)) == 1 })
	removeFirst()
	// The server accepts a token for some seconds after its account was deleted.
	var b web.Backoff
	for {
		if _, err = r.Acquire(t.Context(), wanted()); err != nil {
			break
		}
		if err := b.Wait(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(err, rest.ErrForbidden) {
		t.Fatalf("with an unknown token: %v", err)
	}
	l.wire.Cut()
	l.wire.Join(t)
	until(t, updates, "the refusal", func(u cluster.Update) bool { return errors.Is(u.Err, rest.ErrForbidden) })
	put(second)
	until(t, updates, "the node again", func(u cluster.Update) bool { return len(names(u)) == 1 })
	if _, err := r.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
}

// Ready clears the condition that a cloud's controller set, and writes only once. Release removes it.
func TestReady(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.make(t, "node-1")
	r := l.open(t, "node-1")
	set := map[string]any{"status": map[string]any{"conditions": []map[string]string{
		{"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}, {"type": "Ready", "status": "True"},
	}}}
	l.s.Must(t, http.MethodPatch, "/api/v1/nodes/node-1/status", rest.StrategicMergePatch, set)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := l.node(t, "node-1")
	i := slices.IndexFunc(first.Status.Conditions, func(c condition) bool { return c.Type == "NetworkUnavailable" })
	if len(first.Status.Conditions) != 2 || i < 0 || first.Status.Conditions[i].Status != "False" || first.Status.Conditions[i].Reason != "FlannelIsUp" {
		t.Fatalf("conditions %+v", first.Status.Conditions)
	}
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second := l.node(t, "node-1"); second.Metadata.ResourceVersion != first.Metadata.ResourceVersion {
		t.Errorf("a second time wrote")
	}
	if err := r.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := l.node(t, "node-1").Status.Conditions; len(left) != 1 || left[0].Type != "Ready" {
		t.Errorf("after Release: conditions %+v", left)
	}
}

// Overrides are read with the default and with another prefix, and Acquire publishes them.
func TestOverrides(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	r := l.open(t, "node-1")
	if _, err := r.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	updates := watched(t, r)
	until(t, updates, "the node", func(u cluster.Update) bool { return len(names(u)) == 1 })
	l.annotate(t, "node-1", map[string]any{DefaultPrefix + "/public-ip-overwrite": "203.0.113.9", DefaultPrefix + "/node-public-ip": "192.0.2.1"})
	want := cluster.Overrides{NodeIP: netip.MustParseAddr("192.0.2.1"), PublishIP: netip.MustParseAddr("203.0.113.9")}
	until(t, updates, "the overrides", func(u cluster.Update) bool {
		return len(names(u)) == 1 && u.Snapshot.Overrides == want
	})
	other := wanted()
	other.PublicIP = netip.MustParseAddr("192.0.2.99")
	if _, err := r.Acquire(t.Context(), other); !errors.Is(err, cluster.ErrNotAssigned) {
		t.Fatalf("with another address than the operator's: %v", err)
	}
	if got, err := r.Acquire(t.Context(), wanted()); err != nil || got.PublicIP != want.PublishIP {
		t.Fatalf("got %+v, %v", got, err)
	}
	until(t, updates, "the overwritten address", func(u cluster.Update) bool {
		return len(names(u)) == 1 && u.Snapshot.Nodes[0].PublicIP == want.PublishIP
	})
	// Operators' annotations stay.
	if err := r.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := l.node(t, "node-1").Metadata.Annotations; len(left) != 2 {
		t.Errorf("left are %v", left)
	}
	l.annotate(t, "node-1", map[string]any{DefaultPrefix + "/public-ip-overwrite": "here"})
	if _, err := r.Acquire(t.Context(), wanted()); !errors.Is(err, cluster.ErrInvalid) || !strings.Contains(err.Error(), "public-ip-overwrite") {
		t.Errorf("an override that is not an address: %v", err)
	}

	own, err := Open(Options{Client: r.client, Node: "node-1", Config: l.config, Prefix: "example.com/net"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	if a := l.node(t, "node-1").Metadata.Annotations; a["example.com/net-public-ip"] != "192.0.2.1" || a["example.com/net-kube-subnet-manager"] != "true" {
		t.Errorf("annotations %v", a)
	}
}

// flanneld's annotations are read unchanged, also those of older versions and other backends.
func TestFlanneld(t *testing.T) {
	l := newLab(t, server, networkConf)
	r := l.open(t, "node-1")
	for i, annotations := range []map[string]any{
		{"backend-data": `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`, "backend-type": "vxlan", "public-ip": "172.17.8.101"},
		{"backend-data": `{"VtepMAC":"12:c6:65:89:b4:e4"}`, "backend-type": "vxlan", "public-ip": "172.17.8.102"},
		{"backend-data": "null", "backend-type": "host-gw", "public-ip": "172.17.8.103"},
		{"backend-data": `{"PublicKey":"x","Port":51820}`, "backend-type": "wireguard", "public-ip": "172.17.8.104"},
	} {
		name := "flannel-" + string(rune('a'+i))
		l.assign(t, name, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(10 + i), 0}), 24))
		full := map[string]any{DefaultPrefix + "/kube-subnet-manager": "true"}
		for k, v := range annotations {
			full[DefaultPrefix+"/"+k] = v
		}
		l.annotate(t, name, full)
	}
	l.assign(t, "another-network", cidr2)
	var s *cluster.Snapshot
	until(t, watched(t, r), "the nodes", func(u cluster.Update) bool { s = u.Snapshot; return len(names(u)) == 4 })
	if len(s.Faults) != 0 {
		t.Errorf("faults %v", s.Faults)
	}
	for i, want := range []string{"12:c6:65:89:b4:e3", "12:c6:65:89:b4:e4"} {
		v, err := cluster.ParseVTEP(s.Nodes[i].BackendData)
		if err != nil || v.MAC.String() != want || v.NoVNI != (i == 1) || s.Nodes[i].PodCIDRs[0].Bits() != 24 {
			t.Errorf("node %d: %+v, %v", i, v, err)
		}
	}
}

// Two nodes with one pod network: the second gets an error that names the first.
func TestConflict(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	l.assign(t, "node-2", cidr1)
	one, two := l.open(t, "node-1"), l.open(t, "node-2")
	if _, err := one.Acquire(t.Context(), wanted()); err != nil {
		t.Fatal(err)
	}
	until(t, watched(t, two), "the first", func(u cluster.Update) bool { return len(names(u)) == 1 })
	if _, err := two.Acquire(t.Context(), wanted()); !errors.Is(err, cluster.ErrConflict) || !strings.Contains(err.Error(), "node-1") {
		t.Fatalf("the second: %v", err)
	}
	if a := l.node(t, "node-2").Metadata.Annotations; len(a) != 0 {
		t.Errorf("published %v", a)
	}
}

// Nothing is written to a Node that was recreated since it was read.
func TestReplaced(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	r := l.open(t, "node-1")
	var o rest.Node
	if err := r.get(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	l.remove(t, "node-1")
	l.make(t, "node-1")
	yes := "true"
	if err := r.annotate(t.Context(), &o, "", map[string]*string{r.keys.managed: &yes}); !errors.Is(err, rest.ErrConflict) {
		t.Errorf("written to another object: %v", err)
	}
}

// TestReinstalledNode: a machine without state and with another address has the Node if its kubelet runs under this name.
func TestReinstalledNode(t *testing.T) {
	l := newLab(t, server, networkConf)
	l.assign(t, "node-1", cidr1)
	acquire := func(boot, address string) error {
		r := l.open(t, "node-1")
		save := func(context.Context, cluster.OwnerState) error { return nil }
		r.boot, r.owner = boot, cluster.NewOwner(cluster.OwnerOptions{Node: "node-1", Machine: "with " + boot, Boot: boot, Save: save})
		_, err := r.Acquire(t.Context(), cluster.Node{PublicIP: netip.MustParseAddr(address), BackendType: "host-gw"})
		return err
	}
	kubelet := func(boot string) {
		status := map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": boot}}}
		l.s.Must(t, http.MethodPatch, "/api/v1/nodes/node-1/status", rest.MergePatch, status)
	}
	kubelet("boot-1")
	if err := acquire("boot-1", "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	if err := acquire("boot-2", "192.0.2.2"); !errors.Is(err, cluster.ErrConflict) {
		t.Errorf("another machine: %v", err)
	}
	kubelet("boot-2")
	if err := acquire("boot-2", "192.0.2.2"); err != nil {
		t.Errorf("the machine was installed again: %v", err)
	}
}
