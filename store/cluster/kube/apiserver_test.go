//go:build kube

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/kubetest"
)

// server is the API server that the tests share. Each test begins without nodes.
var server *kubetest.Server

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.DebianEtcd, func(s *kubetest.Server) { server = s }))
}

// lab is a cluster without nodes, with a connection to its API server.
type lab struct {
	s      *kubetest.Server
	wire   *kubetest.Wire
	config *cluster.Config
}

const networkConf = `{"Network":"10.244.0.0/16"}`

func newLab(t *testing.T, s *kubetest.Server, conf string) *lab {
	t.Helper()
	config, _, err := cluster.ParseConfig([]byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	s.Must(t, http.MethodDelete, "/api/v1/nodes", "", nil)
	l := &lab{s, s.NewWire(t), config}
	l.allow(t)
	return l
}

// allow gives the agents the rights that the package's documentation lists.
func (l *lab) allow(tb testing.TB) {
	tb.Helper()
	l.s.Must(tb, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": DefaultNamespace}}, http.StatusConflict)
	l.s.Allow(tb, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "create", "patch"}})
}

// open opens the registry as a node's agent does, with only the rights that it needs.
func (l *lab) open(tb testing.TB, name string) *Registry {
	tb.Helper()
	c, err := rest.Open(rest.Kubeconfig(l.s.Kubeconfig(tb, l.wire.Address, kubetest.Agent)))
	if err != nil {
		tb.Fatal(err)
	}
	r, err := Open(Options{Client: c, Node: name, Config: l.config})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

// make creates a Node unless it exists.
func (l *lab) make(tb testing.TB, name string) {
	tb.Helper()
	l.s.Must(tb, http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{"name": name}}, http.StatusConflict)
}

func (l *lab) remove(tb testing.TB, name string) {
	tb.Helper()
	l.s.Must(tb, http.MethodDelete, "/api/v1/nodes/"+name, "", nil)
}

// assign gives a Node its pod networks. They are immutable, so it recreates the Node.
func (l *lab) assign(tb testing.TB, name string, podCIDRs ...netip.Prefix) {
	tb.Helper()
	l.make(tb, name)
	patch := map[string]any{"spec": map[string]any{"podCIDR": podCIDRs[0], "podCIDRs": podCIDRs}}
	if out := l.s.Must(tb, http.MethodPatch, "/api/v1/nodes/"+name, rest.MergePatch, patch, http.StatusUnprocessableEntity); json.Valid(out) {
		var o rest.Node
		if err := json.Unmarshal(out, &o); err != nil || len(o.Spec.PodCIDRs) == len(podCIDRs) && o.Spec.PodCIDR == podCIDRs[0].String() {
			return
		}
	}
	l.remove(tb, name)
	l.assign(tb, name, podCIDRs...)
}

// annotate sets annotations of a Node as an operator does; nil removes one.
func (l *lab) annotate(tb testing.TB, name string, annotations map[string]any) {
	tb.Helper()
	l.s.Must(tb, http.MethodPatch, "/api/v1/nodes/"+name, rest.MergePatch, map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

func (l *lab) node(tb testing.TB, name string) (o struct {
	rest.Object
	conditions
},
) {
	tb.Helper()
	if err := json.Unmarshal(l.s.Must(tb, http.MethodGet, "/api/v1/nodes/"+name, "", nil), &o); err != nil {
		tb.Fatal(err)
	}
	return o
}

// TestSuite runs the common suite with the rights that the package's documentation
// lists.
func TestSuite(t *testing.T) {
	t.Run("list and watch", func(t *testing.T) { suite(t, server) })
	t.Run("streaming list", func(t *testing.T) {
		s, err := kubetest.Start(kubetest.CurrentEtcd)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		suite(t, s)
	})
}

func suite(t *testing.T, s *kubetest.Server) {
	t.Helper()
	k, err := newKeys(DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	clustertest.Suite(t, func(t *testing.T, conf string) *clustertest.World {
		l := newLab(t, s, conf)
		return &clustertest.World{
			Open: func(tb testing.TB, name string, owner *cluster.Owner) cluster.Registry {
				tb.Helper()
				l.make(tb, name)
				r := l.open(tb, name)
				r.owner = owner
				return r
			},
			Assign: func(tb testing.TB, name string, p []netip.Prefix) { tb.Helper(); l.assign(tb, name, p...) },
			Writes: func(tb testing.TB) string {
				tb.Helper()
				var list struct{ Items []rest.Node }
				if err := json.Unmarshal(l.s.Must(tb, http.MethodGet, "/api/v1/nodes", "", nil), &list); err != nil {
					tb.Fatal(err)
				}
				text := ""
				for i := range list.Items {
					text += list.Items[i].Metadata.Name + "@" + list.Items[i].Metadata.ResourceVersion + " "
				}
				return text
			},
			Alter: func(tb testing.TB, n cluster.Node) {
				tb.Helper()
				changes := map[string]any{}
				for key, value := range k.annotations(&n) {
					changes[key] = value
				}
				l.annotate(tb, n.Name, changes)
			},
			Remove: func(tb testing.TB, n cluster.Node) { tb.Helper(); l.strip(tb, n.Name) },
			Hostile: func(tb testing.TB) (names []string) {
				tb.Helper()
				for i, annotations := range []map[string]any{
					{k.publicIP: "not an address", k.backendType: "vxlan"},
					{k.publicIP: "127.0.0.1", k.backendType: "vxlan", k.data: `{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`},
					{k.publicIP: "192.0.2.77", k.backendType: "vxlan", k.data: `{"VNI":`},
					{k.publicIP: "192.0.2.78", k.publicIPv6: "fe80::1%eth0", k.backendType: "vxlan"},
					{k.publicIP: "192.0.2.79", k.backendType: string(make([]byte, 4000)), k.data: "null"},
				} {
					name := fmt.Sprintf("hostile-%d", i)
					l.assign(tb, name, netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", 100+i)))
					annotations[k.managed] = "true"
					l.annotate(tb, name, annotations)
					names = append(names, name)
				}
				l.assign(tb, "outside", netip.MustParsePrefix("10.99.0.0/24"))
				l.make(tb, "without")
				for _, name := range []string{"outside", "without"} {
					l.annotate(tb, name, map[string]any{k.managed: "true", k.publicIP: "192.0.2.80", k.backendType: "vxlan", k.data: "null"})
					names = append(names, name)
				}
				return names
			},
			Down: func(tb testing.TB) func() {
				tb.Helper()
				l.wire.Cut()
				return sync.OnceFunc(func() { l.wire.Join(tb) })
			},
		}
	})
}

// strip removes the agent's annotations.
func (l *lab) strip(tb testing.TB, name string) {
	tb.Helper()
	k, err := newKeys(DefaultPrefix)
	if err != nil {
		tb.Fatal(err)
	}
	none := map[string]any{}
	for _, key := range k.own() {
		none[key] = nil
	}
	l.annotate(tb, name, none)
}
