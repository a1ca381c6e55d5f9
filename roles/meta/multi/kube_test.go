//go:build kube

package multi_test

import (
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/kubetest"
)

// TestKube: a real API server has the pods' annotations and the networks, one of them with an empty spec, and gets the network-status. Then the server is killed and definitions are lost: CHECK, STATUS, GC and DEL send no request, and an ADD that needs the server leaves nothing.
func TestKube(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, err := kubetest.Start(kubetest.DebianEtcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.InstallNetworks(t)
	s.Allow(t, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		kubetest.Rule{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"network-attachment-definitions"}, Verbs: []string{"get"}})
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "web"}})

	w := newWorld(t)
	w.write("confs/20-b.conflist", netB)
	w.wish("b,c")
	start := w.warm()
	w.annotations = map[string]string{}
	network := func(name, config string) {
		t.Helper()
		s.Must(t, http.MethodPost, "/apis/k8s.cni.cncf.io/v1/namespaces/web/network-attachment-definitions", "", map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"config": config},
		})
	}
	network("net-b", "")
	network("far", netC)
	network("apart", `{"name":"net-s","cniVersion":"1.1.0","plugins":[{"type":"thirdparty"}]}`)
	w.conf["kubeconfig"] = s.Kubeconfig(t, s.Address, kubetest.Agent)
	delete(w.conf, "capabilities") // the runtime passes no annotations

	// call returns a call for one of the pods. The container ID is the pod's name.
	netns := map[string]*netopstest.NS{}
	uid := map[string]string{}
	as := func(pod string, c rolestest.Call) rolestest.Call {
		t.Helper()
		c.ID, c.Netns = pod, netns[pod].Path()
		c.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME=" + pod + ";K8S_POD_UID=" + uid[pod]
		c.Conf = strings.Replace(c.Conf, `"io.kubernetes.cri.pod-annotations":{}`, `"other":{}`, 1)
		return c
	}
	type object struct {
		Metadata struct {
			UID         string
			Annotations map[string]string
		}
	}
	const pods = "/api/v1/namespaces/web/pods"
	made := map[string]rolestest.Answer{}
	var all []*netopstest.NS
	empty := ""
	for _, pod := range []string{"one", "two", "three", "late"} {
		netns[pod] = netopstest.New(t)
		all, empty = append(all, netns[pod]), netns[pod].Snapshot(t)
		var o object
		if err := json.Unmarshal(s.Must(t, http.MethodPost, pods, "", map[string]any{
			"metadata": map[string]any{"name": pod, "annotations": map[string]string{"k8s.v1.cni.cncf.io/networks": "net-b,far@far,apart"}},
			"spec":     map[string]any{"containers": []map[string]any{{"name": "c", "image": "i"}}},
		}), &o); err != nil {
			t.Fatal(err)
		}
		uid[pod] = o.Metadata.UID
		if pod == "late" {
			continue
		}
		made[pod] = w.OK(as(pod, w.call("ADD")))
		if err := json.Unmarshal(s.Must(t, http.MethodGet, pods+"/"+pod, "", nil), &o); err != nil {
			t.Fatal(err)
		}
		var status []struct{ Name, Interface string }
		if err := json.Unmarshal([]byte(o.Metadata.Annotations["k8s.v1.cni.cncf.io/network-status"]), &status); err != nil || len(status) != 4 || status[2].Name != "web/far" || status[2].Interface != "far" {
			t.Errorf("pod %s has annotations %v: %v", pod, o.Metadata.Annotations, err)
		}
	}

	s.StopAPI()
	attached := w.State([]string{"sysctl net/"}, all...)
	unchanged := func(when string) {
		t.Helper()
		if have := w.State([]string{"sysctl net/"}, all...); have != attached {
			t.Errorf("%s: state\n%s\nwant\n%s", when, have, attached)
		}
	}
	w.Fail(as("late", w.call("ADD")), 11)
	unchanged("ADD without the API server")
	for pod, a := range made {
		w.OK(as(pod, w.check(a.Stdout)))
	}
	status := w.call("STATUS")
	status.ID, status.Netns, status.IfName = "", "", ""
	w.OK(status)
	valid := []roles.AttachmentID{{ContainerID: "one", IfName: "eth0"}, {ContainerID: "two", IfName: "eth0"}, {ContainerID: "three", IfName: "eth0"}}
	w.OK(w.gc(valid))
	unchanged("GC of nothing")
	w.OK(as("one", w.call("DEL")))
	w.OK(as("one", w.call("DEL")))
	w.OK(w.gc(valid[1:2]))
	last := as("two", w.call("DEL"))
	last.Netns = ""
	w.OK(last)
	w.same(start, "with all gone")
	for pod, ns := range netns {
		if have := ns.Snapshot(t); have != empty {
			t.Errorf("the container of %s:\n%s\nwant\n%s", pod, have, empty)
		}
	}
	calls, _ := w.calls()
	for _, pod := range []string{"one", "two", "three"} {
		if !strings.Contains(strings.Join(calls, ","), "DEL "+pod+" net3") {
			t.Errorf("the plugin that is executed was told nothing of %s: %q", pod, calls)
		}
	}
}

// TestKubeClaims: a driver publishes which resource a claimed device is of, and its ID, in a ResourceSlice of a real API server.
func TestKubeClaims(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, err := kubetest.Start(kubetest.DebianEtcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "web"}})
	s.Must(t, http.MethodPost, "/api/v1/namespaces/web/pods", "", map[string]any{
		"metadata": map[string]any{"name": "pod"},
		"spec":     map[string]any{"nodeName": "node", "containers": []map[string]any{{"name": "c", "image": "i"}}},
	})
	type attributes map[string]map[string]any
	slice := func(name, node string, vf attributes) {
		s.Must(t, http.MethodPost, "/apis/resource.k8s.io/v1/resourceslices", "", map[string]any{
			"metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"driver": "d.example.com", "nodeName": node, "pool": map[string]any{"name": node, "generation": 1, "resourceSliceCount": 1},
				"devices": []map[string]any{{"name": "vf-0", "attributes": vf}, {"name": "gpu-0", "attributes": attributes{"model": {"int": 7}}}},
			},
		})
	}
	slice("here", "node", attributes{"k8s.cni.cncf.io/resourceName": {"string": "example.com/sf"}, "k8s.cni.cncf.io/deviceID": {"string": "mlx5_core.sf.4"}})
	slice("there", "other", attributes{"k8s.cni.cncf.io/resourceName": {"string": "example.com/sf"}, "k8s.cni.cncf.io/deviceID": {"string": "mlx5_core.sf.5"}})

	k := newKubelet(t)
	k.serve()
	k.answer(answer(container(claim("pod-sf-x2k7p", "d.example.com", "gpu-0", "vf-0"))))
	k.definition("example.com/sf")
	k.wish("vf")
	k.conf["kubeconfig"] = s.Kubeconfig(t, s.Address, kubetest.Agent)
	s.Allow(t, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}})
	if a := k.Fail(k.call("ADD"), 11); !strings.Contains(a.Stdout, "list resourceslices of driver d.example.com: API server: 403") {
		t.Errorf("without the right to list: %s", a.Stdout)
	}
	s.Allow(t, "slices", kubetest.Rule{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"list"}})
	k.uses("mlx5_core.sf.4")
	k.definition("d.example.com")
	k.uses("mlx5_core.sf.4")
	k.definition("example.com/other")
	if a := k.Fail(k.call("ADD"), 7); !strings.Contains(a.Stdout, "let the driver publish") {
		t.Errorf("have %s", a.Stdout)
	}
}
