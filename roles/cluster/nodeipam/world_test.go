//go:build kube

package nodeipam_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cluster/nodeipam"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

const nodesPath = "/api/v1/nodes"

func table() roles.Table { return tabletest.Of(nodeipam.Role()) }

func TestMain(m *testing.M) { rolestest.Main(m, table()) }

// world is a cluster: Kubernetes with the objects of the example manifest, or a registry without an API server.
type world struct {
	*kubetest.Server
	t     *testing.T
	token string
	// registry is nil with Kubernetes. flags choose it.
	registry *objects.Client
	flags    []string
	// freeze stops the registry until thaw is called.
	freeze func() (thaw func())
}

// newRegistry returns a world in etcd or in a directory.
func newRegistry(t *testing.T, kind string) *world {
	t.Helper()
	const conf = `{"Network":"10.244.0.0/16"}`
	if kind == "dir" {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, "config.json"), []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := dir.Open(dir.Options{Dir: path, Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, registry: objects.New(r), flags: []string{"-cluster-dir=" + path}}
		w.freeze = func() func() {
			f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
			w.must(err)
			w.must(unix.Flock(int(f.Fd()), unix.LOCK_EX))
			return func() { w.must(f.Close()) }
		}
		return w
	}
	s := etcdtest.Start(t)
	r, err := etcd.Open(etcd.Options{Endpoints: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return &world{
		t: t, registry: objects.New(r), flags: []string{"-etcd-endpoints=" + s.URL},
		freeze: func() func() { s.Stop(t); return func() { s.Continue(t) } },
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world { t.Helper(); return newWorldOn(t, kubetest.CurrentEtcd) }

func newWorldOn(t *testing.T, store kubetest.Store) *world {
	t.Helper()
	s, err := kubetest.Start(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	w := &world{Server: s, t: t}
	w.freeze = func() func() {
		w.must(unix.Kill(s.ProcessID(), unix.SIGSTOP))
		return func() { w.must(unix.Kill(s.ProcessID(), unix.SIGCONT)) }
	}
	w.apply("../../../examples/kubernetes/nodeipam.yaml")
	w.token = s.Token(t, "kube-system", "cnibox-nodeipam")
	return w
}

// apply makes the objects of a manifest.
func (w *world) apply(path string) {
	w.t.Helper()
	for _, name := range []string{"default", "kube-system"} {
		w.Must(w.t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": name}}, http.StatusConflict)
	}
	w.Kubectl(w.t, "apply", "-f", path)
}

func (w *world) decode(b []byte, v any) {
	w.t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		w.t.Fatalf("%v: %s", err, b)
	}
}

// create makes a Node, with pod networks unless there are none.
func (w *world) create(name string, cidrs ...string) {
	w.t.Helper()
	spec := map[string]any{}
	if len(cidrs) > 0 {
		spec = map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs}
	}
	w.must(w.add(name, nil, spec))
}

// add makes a Node.
func (w *world) add(name string, labels map[string]string, spec map[string]any) error {
	o := map[string]any{"metadata": map[string]any{"name": name, "labels": labels}, "spec": spec}
	if w.registry != nil {
		return w.registry.Create(w.t.Context(), nodesPath, o, nil)
	}
	_, err := w.Do(http.MethodPost, nodesPath, "", o)
	return err
}

func (w *world) delete(name string) error {
	if w.registry != nil {
		return w.registry.Delete(w.t.Context(), nodesPath+"/"+name)
	}
	_, err := w.Do(http.MethodDelete, nodesPath+"/"+name, "", nil)
	return err
}

func (w *world) remove(name string) {
	w.t.Helper()
	w.must(w.delete(name))
}

// get returns a Node, or an empty one.
func (w *world) get(name string) (o rest.Node) {
	w.t.Helper()
	if w.registry != nil {
		w.must(w.registry.Get(w.t.Context(), nodesPath+"/"+name, &o))
		return o
	}
	w.decode(w.Must(w.t, http.MethodGet, nodesPath+"/"+name, "", nil, http.StatusNotFound), &o)
	return o
}

// all returns all Nodes by name.
func (w *world) all() map[string]rest.Node {
	w.t.Helper()
	if w.registry != nil {
		return w.follow()
	}
	var list struct{ Items []rest.Node }
	w.decode(w.Must(w.t, http.MethodGet, nodesPath, "", nil), &list)
	out := map[string]rest.Node{}
	for _, o := range list.Items {
		out[o.Metadata.Name] = o
	}
	return out
}

// follow returns all Nodes of a registry without an API server.
func (w *world) follow() map[string]rest.Node {
	ctx, stop := context.WithCancel(w.t.Context())
	c := &copied{nodes: map[string]rest.Node{}, stop: stop}
	_ = objects.Follow(ctx, w.registry, nodesPath, c)
	w.must(c.err)
	return c.nodes
}

// copied is a Follower that stops after all Nodes were read.
type copied struct {
	nodes map[string]rest.Node
	stop  func()
	err   error
}

func (c *copied) Put(o *rest.Node, _ bool) { c.nodes[o.Metadata.Name] = *o }
func (c *copied) Remove(string, bool)      {}
func (c *copied) Complete(map[string]bool) { c.stop() }
func (c *copied) Failed(err error)         { c.err = err; c.stop() }
func (c *copied) Recovered()               {}

// assigned waits until a Node has pod networks, and returns them.
func (w *world) assigned(name string) string {
	w.t.Helper()
	var o rest.Node
	await.Until(w.t, func() bool { o = w.get(name); return len(o.Spec.PodCIDRs) > 0 }, func() string { return name + " has no pod network" })
	if o.Spec.PodCIDR != o.Spec.PodCIDRs[0] {
		w.t.Errorf("%s has spec.podCIDR %s and podCIDRs %v", name, o.Spec.PodCIDR, o.Spec.PodCIDRs)
	}
	if a := o.Metadata.Annotations; len(a) > 0 {
		w.t.Errorf("%s has annotations %v", name, a)
	}
	return strings.Join(o.Spec.PodCIDRs, ",")
}

// assignedAll waits until a number of Nodes have pod networks, and checks that no two overlap.
func (w *world) assignedAll(count int) map[string]rest.Node {
	w.t.Helper()
	var all map[string]rest.Node
	var without []string
	await.Until(w.t, func() bool {
		all, without = w.all(), nil
		for name, o := range all {
			if len(o.Spec.PodCIDRs) == 0 {
				without = append(without, name)
			}
		}
		return len(without) == 0 && len(all) == count
	}, func() string { return fmt.Sprintf("of %d nodes these have no pod network: %v", len(all), without) })
	var held []netip.Prefix
	for _, o := range all {
		for _, c := range o.Spec.PodCIDRs {
			held = append(held, netip.MustParsePrefix(c))
		}
	}
	slices.SortFunc(held, netip.Prefix.Compare)
	for i := range held[1:] {
		if held[i].Overlaps(held[i+1]) {
			w.t.Errorf("%s and %s are assigned twice", held[i], held[i+1])
		}
	}
	return all
}

// events returns the reasons of the events of a Node.
func (w *world) events(name string) (reasons []string) {
	w.t.Helper()
	var list struct {
		Items []struct {
			Reason         string
			InvolvedObject struct{ Kind, Name, UID string }
		}
	}
	w.decode(w.Must(w.t, http.MethodGet, "/api/v1/namespaces/default/events", "", nil), &list)
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name && e.InvolvedObject.Kind == "Node" && e.InvolvedObject.UID != "" {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// condition waits until a Node's condition of nodeipam has a reason, or until there is none. The kubelet's condition stays.
func (w *world) condition(name, reason string) {
	w.t.Helper()
	var got []string
	want := []string{"Ready False "}
	if reason != "" {
		want = append(want, "cnibox.io/PodNetwork False "+reason)
	}
	await.Until(w.t, func() bool {
		var o struct {
			Status struct {
				Conditions []struct{ Type, Status, Reason string }
			}
		}
		w.decode(w.Must(w.t, http.MethodGet, nodesPath+"/"+name, "", nil), &o)
		got = nil
		for _, c := range o.Status.Conditions {
			got = append(got, c.Type+" "+c.Status+" "+c.Reason)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("%s has conditions %q, want %q", name, got, want) })
}

// status has the fields of the answer that are used here.
type status struct {
	Identity, Holder, Error string
	Leader, Synced          bool
	Nodes, Waiting          int
	Faults                  []struct{ Node, Error string }
	Networks                []struct{ Used, Max int }
}

// replica is a daemon in this process.
type replica struct {
	w      *world
	host   *roles.Host
	socket string
	log    *logs
	stop   func()
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// quick are the flags for leases that expire soon.
func quick() []string {
	return []string{"-leader-elect-lease-duration=3s", "-leader-elect-renew-deadline=2s", "-leader-elect-retry-period=100ms"}
}

// start starts a daemon with the rights of the example. Without a master it uses the server itself.
func (w *world) start(master string, flags ...string) *replica {
	w.t.Helper()
	dir := w.t.TempDir()
	r := &replica{w: w, socket: filepath.Join(dir, "nodeipam.sock"), log: &logs{}}
	host, done, err := node.Open(w.t.Context(), node.Options{RunDir: dir, StateDir: dir, Role: "nodeipam", Program: "test", Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	r.host = host
	args := append([]string{"-socket=" + r.socket}, flags...)
	switch {
	case w.registry != nil:
		args = append(args, w.flags...)
	case master == "":
		args = append(args, "-kubeconfig="+w.Kubeconfig(w.t, w.Address, w.token))
	default:
		args = append(args, "-master="+master)
	}
	args = append(quick(), args...)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- nodeipam.Run(ctx, host, args) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("nodeipam: %v", err)
		}
		done()
	})
	w.t.Cleanup(func() {
		r.stop()
		if w.t.Failed() {
			w.t.Logf("log of a replica:\n%s", r.log)
		}
	})
	return r
}

// status returns the answer of `cnibox nodeipam status`.
func (r *replica) status() (s status, err error) {
	r.w.t.Helper()
	verbs := nodeipam.Role().Verbs()
	i := slices.IndexFunc(verbs, func(v roles.CommandVerb) bool { return v.Name == "nodeipam status" })
	out, err := verbs[i].Run(r.w.t.Context(), r.host, map[string]string{"socket": r.socket}, nil)
	if b, _ := json.Marshal(out); out != nil {
		r.w.decode(b, &s)
	}
	return s, err
}

// until waits for a status.
func (r *replica) until(what string, is func(status) bool) (s status) {
	r.w.t.Helper()
	var err error
	await.Until(r.w.t, func() bool { s, err = r.status(); return is(s) }, func() string { return fmt.Sprintf("no %s: %+v, %v", what, s, err) })
	return s
}

func (r *replica) leads() {
	r.w.t.Helper()
	r.until("leader", func(s status) bool { return s.Leader && s.Synced })
}
