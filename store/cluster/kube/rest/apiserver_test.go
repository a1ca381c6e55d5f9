//go:build kube

package rest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
	"github.com/cnibox/cnibox/test/kubetest"
)

var server *kubetest.Server

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.CurrentEtcd, func(s *kubetest.Server) { server = s }))
}

func open(t *testing.T, token string) *Client {
	t.Helper()
	c, err := Open(Kubeconfig(server.Kubeconfig(t, server.Address, token)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// pod creates a pod in the namespace default.
func pod(t *testing.T, name string) *Pod {
	t.Helper()
	server.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "default"}}, http.StatusConflict)
	var p Pod
	err := json.Unmarshal(server.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", "", map[string]any{
		"metadata": map[string]any{"name": name, "annotations": map[string]string{"k8s.v1.cni.cncf.io/networks": "a,b@net1"}},
		"spec":     map[string]any{"nodeName": "node-1", "containers": []map[string]string{{"name": "c", "image": "i"}}},
	}), &p)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// allow gives the agent the rights that multi needs.
func allow(t *testing.T) {
	t.Helper()
	server.Allow(t, "multi", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		kubetest.Rule{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"network-attachment-definitions"}, Verbs: []string{"get"}})
}

func TestPod(t *testing.T) {
	allow(t)
	made := pod(t, "web-0")
	c := open(t, kubetest.Agent)
	p, err := c.Pod(t.Context(), "default", "web-0")
	if err != nil || p.Metadata.UID != made.Metadata.UID || p.Metadata.Annotations["k8s.v1.cni.cncf.io/networks"] != "a,b@net1" {
		t.Fatalf("%+v, %v", p, err)
	}
	if node, err := c.NodeName(t.Context(), "default", "web-0"); err != nil || node != "node-1" {
		t.Errorf("%q, %v", node, err)
	}
	status := `[{"name":"a","interface":"eth0","ips":["10.1.2.3"]}]`
	set := map[string]*string{"k8s.v1.cni.cncf.io/network-status": &status}
	if err := c.AnnotatePod(t.Context(), "default", "web-0", made.Metadata.UID, set); err != nil {
		t.Fatal(err)
	}
	if p, err = c.Pod(t.Context(), "default", "web-0"); err != nil || p.Metadata.Annotations["k8s.v1.cni.cncf.io/network-status"] != status || len(p.Metadata.Annotations) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	// Another pod gets the name.
	server.Must(t, http.MethodDelete, "/api/v1/namespaces/default/pods/web-0?gracePeriodSeconds=0", "", nil)
	pod(t, "web-0")
	if err := c.AnnotatePod(t.Context(), "default", "web-0", made.Metadata.UID, set); !errors.Is(err, ErrConflict) {
		t.Errorf("another pod of the name: %v", err)
	}
	server.Must(t, http.MethodDelete, "/api/v1/namespaces/default/pods/web-0?gracePeriodSeconds=0", "", nil)
	if err := c.AnnotatePod(t.Context(), "default", "web-0", "", set); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), `pods "web-0" not found`) {
		t.Errorf("no pod: %v", err)
	}
	if _, err := c.Pod(t.Context(), "default", "web-0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("no pod: %v", err)
	}
}

func TestNetwork(t *testing.T) {
	allow(t)
	c := open(t, kubetest.Agent)
	if _, err := c.Network(t.Context(), "default", "macvlan"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a cluster without the kind: %v", err)
	}
	server.InstallNetworks(t)
	const config = `{ "cniVersion": "0.3.1", "type": "macvlan", "master": "eth0" }`
	server.Must(t, http.MethodPost, "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions", "", map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": "macvlan", "annotations": map[string]string{"k8s.v1.cni.cncf.io/resourceName": "example.com/nic"}},
		"spec":     map[string]string{"config": config},
	})
	n, err := c.Network(t.Context(), "default", "macvlan")
	if err != nil || n.Spec.Config != config || n.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"] != "example.com/nic" {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := c.Network(t.Context(), "default", "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("no network: %v", err)
	}
}

// A client without the right, or with unknown credentials, gets the server's message.
func TestForbidden(t *testing.T) {
	for token, want := range map[string]string{kubetest.Agent: "secrets is forbidden", "nobody": "Unauthorized"} {
		err := open(t, token).Get(t.Context(), "/api/v1/secrets", &Object{})
		if !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", token, err)
		}
	}
}

// A rewritten kubeconfig applies from the next request that fails: after a change of
// the address, of the token, and of the certificate.
func TestKubeconfigRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	put := func(from string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wire := server.NewWire(t)
	put(server.Kubeconfig(t, wire.Address, kubetest.Admin))
	c, err := Open(Kubeconfig(path))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func() error { return c.Get(t.Context(), "/version", &Object{}) }
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	wire.Cut()
	if err := ask(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Fatalf("cut: %v", err)
	}
	put(server.Kubeconfig(t, server.Address, "expired"))
	if err := c.Get(t.Context(), "/api/v1/nodes", &Object{}); !errors.Is(err, ErrForbidden) {
		t.Fatalf("expired: %v", err)
	}
	cert, key := server.ClientCertificate(t, "someone", "system:masters")
	config := strings.Replace(string(read(t, server.Kubeconfig(t, server.Address, "TOKEN"))), "token: TOKEN",
		"client-certificate-data: "+base64.StdEncoding.EncodeToString(cert)+"\n    client-key-data: "+base64.StdEncoding.EncodeToString(key), 1)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), "/api/v1/nodes", &Object{}); err != nil {
		t.Fatalf("with a certificate: %v", err)
	}
	// An incomplete file is ignored, and the old credentials stay in use.
	if err := os.WriteFile(path, []byte(config[:len(config)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), "/api/v1/nodes/none", &Object{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A server with a certificate of another CA is refused.
func TestOtherCA(t *testing.T) {
	c, err := Open(func() (*Config, error) {
		config, err := Kubeconfig(server.Kubeconfig(t, server.Address, kubetest.Admin))()
		if err == nil {
			config.TLS = web.TLS{} // the system's roots
		}
		return config, err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Get(t.Context(), "/version", &Object{}); !errors.Is(err, cluster.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

// TestForms: a Node has the same content in protobuf as in JSON.
func TestForms(t *testing.T) {
	server.Must(t, http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{
		"name": "forms", "labels": map[string]string{"l": "1"}, "annotations": map[string]string{"a": "", "example.com/b": "\"ü\"\n"},
	}})
	defer server.Must(t, http.MethodDelete, "/api/v1/nodes/forms", "", nil)
	c := open(t, kubetest.Admin)
	var said []Object
	for _, accept := range []string{"", protobufWatch} {
		resp, err := c.do(t.Context(), &request{
			method: http.MethodGet, path: "/api/v1/nodes", accept: accept, query: url.Values{"watch": {"1"}, "fieldSelector": {"metadata.name=forms"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		next := jsonEvents[*thing](resp.Body)
		if isProtobuf(resp) {
			next = protobufEvents[*thing](resp.Body)
		}
		kind, o, err := next()
		if err != nil || kind != "ADDED" || isProtobuf(resp) != (accept != "") {
			t.Fatalf("%s as %s: %v", kind, resp.Header.Get("Content-Type"), err)
		}
		said = append(said, o.Object)
	}
	var listed []Object
	if _, err := List(t.Context(), c, "/api/v1/nodes", func(o *thing) { listed = append(listed, o.Object) }); err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(listed, func(o Object) bool { return cmp.Equal(o, said[1]) }) {
		t.Errorf("listed as %+v", listed)
	}
	said[0].Metadata.Labels = nil // not read from protobuf
	if diff := cmp.Diff(said[0], said[1]); diff != "" || said[0].Metadata.UID == "" || len(said[0].Metadata.Annotations) != 2 {
		t.Errorf("%+v: %s", said[0], diff)
	}
}

// completed ends a Follow after all objects were read.
type completed struct{ stop func() }

func (completed) Put(*Object, bool)          {}
func (completed) Remove(string, bool)        {}
func (c completed) Complete(map[string]bool) { c.stop() }
func (completed) Failed(error)               {}
func (completed) Recovered()                 {}

// The server sends all objects in a watch. A client that ends it then does not take this for a refusal.
func TestFollowStream(t *testing.T) {
	// Repeat it, because the server may notice the closed connection before the client does.
	for range 40 {
		ctx, stop := context.WithCancel(t.Context())
		f := follow[*Object]{client: open(t, kubetest.Admin), path: "/api/v1/nodes", to: completed{stop}}
		if _, err := f.watch(ctx); !errors.Is(err, context.Canceled) || f.noStream || f.version == "" {
			t.Fatalf("the stream sent all nodes: %v, %+v", err, &f)
		}
	}
}
