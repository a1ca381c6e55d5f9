package multi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestAPI: without annotations from the runtime, the API provides the annotations and the networks
// that no file describes. The pod gets the network-status. DEL and the other verbs send no request:
// the server that replaces the API server only counts connections.
func TestAPI(t *testing.T) {
	w := newWorld(t)
	var told atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		metadata := map[string]any{"name": "pod", "namespace": "web", "uid": "u", "annotations": map[string]string{"k8s.v1.cni.cncf.io/networks": "b,x@far"}}
		switch {
		case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/namespaces/web/pods/pod/status":
			told.Store(string(body))
			_ = json.NewEncoder(rw).Encode(map[string]any{"metadata": metadata})
		case r.URL.Path == "/api/v1/namespaces/web/pods/pod":
			_ = json.NewEncoder(rw).Encode(map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": metadata})
		case r.URL.Path == "/apis/k8s.cni.cncf.io/v1/namespaces/web/network-attachment-definitions/x":
			_ = json.NewEncoder(rw).Encode(map[string]any{"metadata": map[string]any{"name": "x", "namespace": "web"}, "spec": map[string]string{"config": netC}})
		default:
			rw.WriteHeader(http.StatusNotFound)
			fmt.Fprint(rw, `{"kind":"Status","status":"Failure","reason":"NotFound","message":"not found","code":404}`)
		}
	}))
	w.write("kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}]}`, s.URL))
	w.conf["kubeconfig"] = w.file("kubeconfig")
	w.wish("b,c")
	start := w.warm()
	w.annotations = map[string]string{}
	silent := func(verb string) string {
		return strings.Replace(w.call(verb).Conf, `"io.kubernetes.cri.pod-annotations":{}`, `"other":{}`, 1)
	}
	call := w.call("ADD")
	call.Conf = silent("ADD")
	made := w.OK(call)
	if want := "net-a@eth0 web/b@net1 web/x@far"; w.status() != want {
		t.Errorf("network-status %q, want %q", w.status(), want)
	}
	if doc, _ := told.Load().(string); !strings.Contains(doc, "k8s.v1.cni.cncf.io/network-status") || !strings.Contains(doc, "web/x") || !strings.Contains(doc, `"uid":"u"`) {
		t.Errorf("the pod was told %s", doc)
	}
	again := call
	again.ID = "container2"
	again.Args = strings.Replace(call.Args, "K8S_POD_UID=u", "K8S_POD_UID=other", 1)
	if a := w.Fail(again, 3); !strings.Contains(a.Stdout, "the pod was replaced") {
		t.Errorf("another pod of this name: %s", a.Stdout)
	}
	again.Args = strings.Replace(call.Args, "K8S_POD_NAME=pod", "K8S_POD_NAME=nobody", 1)
	w.Fail(again, 3)
	s.Close()
	w.Fail(again, 11)

	silence, err := net.Listen("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	request := make(chan bool, 1)
	go func() {
		_, err := silence.Accept() // a server that never answers
		request <- err == nil
	}()
	call.Verb, call.Conf = "CHECK", rolestest.WithKeys(t, silent("CHECK"), map[string]any{"prevResult": json.RawMessage(made.Stdout)})
	w.OK(call)
	status := w.call("STATUS")
	status.ID, status.Netns, status.IfName = "", "", ""
	w.OK(status)
	w.OK(w.gc([]roles.AttachmentID{{ContainerID: call.ID, IfName: call.IfName}}))
	call.Verb, call.Conf = "DEL", silent("DEL")
	w.OK(call)
	w.same(start, "after DEL")
	if err := silence.Close(); err != nil || <-request {
		t.Errorf("the server was asked, %v", err)
	}
}
