//go:build kube

package takeover

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/command"
	"github.com/cnibox/cnibox/test/kubetest"
)

// rangeNode is a node of a cluster with whereabouts.
type rangeNode struct {
	*node
	name   string
	config string
	// netns is the namespace of all containers.
	netns string
}

// rangeCluster has the addresses of all containers by "NODE CONTAINER".
type rangeCluster struct {
	*kubetest.Server
	t     *testing.T
	nodes []*rangeNode
	held  map[string]netip.Addr
}

func newRangeCluster(t *testing.T) *rangeCluster {
	t.Helper()
	runtime.LockOSThread() // the server ends with the thread that started it
	t.Cleanup(runtime.UnlockOSThread)
	s, err := kubetest.Start(kubetest.DebianEtcd)
	must(t, err)
	t.Cleanup(s.Stop)
	s.InstallWhereabouts(t)
	for _, name := range []string{kube.DefaultNamespace, "default", "kube-system"} {
		s.Must(t, http.MethodPost, "/api/v1/namespaces", "", object{"metadata": object{"name": name}}, http.StatusConflict)
	}
	core := []string{""}
	s.Allow(t, "agents", kubetest.Rule{APIGroups: core, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		kubetest.Rule{APIGroups: core, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "create", "patch"}},
		kubetest.Rule{APIGroups: []string{"whereabouts.cni.cncf.io"}, Resources: []string{"ippools"}, Verbs: []string{"list"}})
	c := &rangeCluster{Server: s, t: t, held: map[string]netip.Addr{}}
	for _, name := range []string{"a", "b"} {
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", object{"metadata": object{"name": name}})
		n := &rangeNode{
			node: &node{Env: rolestest.NewEnv(t, all.Table()), t: t}, name: name,
			config: s.Kubeconfig(t, s.Address, kubetest.Admin), netns: netopstest.New(t).Path(),
		}
		plugin := filepath.Join(n.PluginDir(), "whereabouts")
		must(t, os.Remove(plugin))
		must(t, exec.Command("cp", kubetest.Built("whereabouts"), plugin).Run())
		must(t, os.WriteFile(filepath.Join(n.Dir(), "whereabouts.conf"), []byte("{}"), 0o600))     // it fails without one
		must(t, os.WriteFile(filepath.Join(n.PluginDir(), "other"), []byte("#!/bin/sh\n"), 0o700)) // of the interface, for CHECK
		must(t, os.MkdirAll(n.confDir(), 0o700))
		must(t, os.MkdirAll(filepath.Join(n.RunDir(), "cli"), 0o700))
		must(t, os.Symlink(n.CacheDir(), filepath.Join(n.RunDir(), "cli", "results")))
		c.nodes = append(c.nodes, n)
	}
	return c
}

// agent runs the agent of a node until the test ends.
func (c *rangeCluster) agent(n *rangeNode) {
	c.t.Helper()
	cmd := n.Cmd(rolestest.Call{Type: "agent"})
	cmd.Args = append(cmd.Args, "--ranges-only", "--kube-subnet-mgr", "--kubeconfig-file="+c.Kubeconfig(c.t, c.Address, kubetest.Agent), "--node-name="+n.name)
	var log bytes.Buffer
	cmd.Stderr = &log
	must(c.t, cmd.Start())
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Logf("agent of %s: %s", n.name, log.String())
		}
	})
	await.Until(c.t, func() bool {
		return service.Ask(context.Background(), filepath.Join(n.RunDir(), "agent.sock"), service.RangeNotify, nil, nil) == nil
	}, func() string { return "the agent does not listen" })
}

// call is a call of a plugin for a container of a node.
func (n *rangeNode) call(verb, typ, id string) rolestest.Call {
	return rolestest.Call{
		Verb: verb, Type: typ, ID: id, IfName: "net1", Netns: n.netns, Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + id,
		Conf: fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lan", "type": "other", "ipam": {"type": %q, "range": "192.0.2.0/26", "configuration_path": %q, "kubernetes": {"kubeconfig": %q}}}`,
			typ, filepath.Join(n.Dir(), "whereabouts.conf"), n.config),
	}
}

// add makes a pod and attaches it. Its address is nobody else's.
func (c *rangeCluster) add(n *rangeNode, id string) {
	c.t.Helper()
	c.Must(c.t, http.MethodPost, "/api/v1/namespaces/default/pods", "", object{
		"metadata": object{"name": id}, "spec": object{"nodeName": n.name, "containers": []object{{"name": "c", "image": "i"}}},
	})
	call := n.call("ADD", "whereabouts", id)
	answer := n.OK(call)
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	must(c.t, json.Unmarshal([]byte(answer.Stdout), &r))
	n.Cache(call, answer.Stdout)
	for other, a := range c.held {
		if a == r.IPs[0].Address.Addr() {
			c.t.Errorf("%s has %s, and %s too", id, a, other)
		}
	}
	c.held[n.name+" "+id] = r.IPs[0].Address.Addr()
}

// del detaches a container, deletes its pod, and asserts that its address is free after it with free.
func (c *rangeCluster) del(n *rangeNode, id string) {
	c.t.Helper()
	n.OK(n.call("DEL", "whereabouts", id))
	must(c.t, os.Remove(filepath.Join(n.CacheDir(), "lan-"+id+"-net1")))
	c.Must(c.t, http.MethodDelete, "/api/v1/namespaces/default/pods/"+id+"?gracePeriodSeconds=0", "", nil)
	delete(c.held, n.name+" "+id)
}

// pool returns the addresses that whereabouts' pool has with their pods, and the pods of its reservations.
func (c *rangeCluster) pool() (allocated, reserved map[string]string) {
	c.t.Helper()
	const api = "/apis/whereabouts.cni.cncf.io/v1alpha1/"
	var pool kube.IPPool
	must(c.t, json.Unmarshal(c.Must(c.t, http.MethodGet, api+"namespaces/kube-system/ippools/192.0.2.0-26", "", nil), &pool))
	allocated, reserved = map[string]string{}, map[string]string{}
	for offset, a := range pool.Spec.Allocations {
		allocated["192.0.2."+offset] = a.PodRef
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodRef string }
		}
	}
	must(c.t, json.Unmarshal(c.Must(c.t, http.MethodGet, api+"overlappingrangeipreservations", "", nil), &list))
	for _, r := range list.Items {
		reserved[r.Metadata.Name] = r.Spec.PodRef
	}
	return allocated, reserved
}

// sameAsHeld asserts that whereabouts' objects have the containers.
func (c *rangeCluster) sameAsHeld(of map[string]string, what string) {
	c.t.Helper()
	if len(of) != len(c.held) {
		c.t.Errorf("%s has %d addresses of %d: %v", what, len(of), len(c.held), of)
	}
	for container, a := range c.held {
		if pod := "default/" + strings.Fields(container)[1]; of[a.String()] != pod {
			c.t.Errorf("%s has %s for %q, not %q", what, a, of[a.String()], pod)
		}
	}
}

// leases returns the number of addresses that a node has given out.
func (n *rangeNode) leases() int {
	n.t.Helper()
	return strings.Count(n.command("ipam", "show", "--json"), `"address":`)
}

// killed runs a command with an API server before which it is killed at its first write, when it is repeated at its second one, and so
// on, before or after the server has executed the write. It returns the output of the one that ends.
func (c *rangeCluster) killed(n *rangeNode, args ...string) string {
	c.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: c.Address})
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	for kill := int64(1); ; kill++ {
		var cmd *exec.Cmd
		var left atomic.Int64
		left.Store(kill)
		dead := false
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet && left.Add(-1) == 0 {
				if kill%2 == 0 {
					proxy.ServeHTTP(httptest.NewRecorder(), r)
				}
				dead = true
				_ = cmd.Process.Kill()
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		config := (&kubetest.Server{CA: ca}).Kubeconfig(c.t, server.Listener.Addr().String(), kubetest.Admin)
		cmd = command.Cmd(n.Env, n.migrate(append(args, "--kubeconfig-file", config)...)...)
		cmd.Env = append(cmd.Env, "PATH="+n.programs()+":/usr/sbin")
		out, err := cmd.CombinedOutput()
		server.Close()
		if dead {
			continue
		}
		if err != nil {
			c.t.Fatalf("%v: %s", err, out)
		}
		c.t.Logf("killed %d times: %s", kill-1, out)
		return string(out)
	}
}

// TestKubeWhereabouts migrates two nodes of a cluster from the real whereabouts with running pods, and returns. Both commands are killed
// at many writes. No address is given out twice, both programs detach the containers of the other, and neither gives addresses while
// the other one has the pool.
func TestKubeWhereabouts(t *testing.T) {
	c := newRangeCluster(t)
	a, b := c.nodes[0], c.nodes[1]
	for i := range 30 {
		c.add(c.nodes[i%2], fmt.Sprint("old-", i))
	}
	c.agent(a)
	c.agent(b)
	if got := a.Fail(a.call("ADD", "range", "early"), 11); !strings.Contains(got.Stdout, "IPPool kube-system/192.0.2.0-26") || !strings.Contains(got.Stdout, "cnibox migrate whereabouts") {
		t.Errorf("ADD beside whereabouts: %s", got.Stdout)
	}
	if out := b.command(b.migrate("migrate", "whereabouts", "--yes")...); !strings.Contains(out, "exit code") || !strings.Contains(out, "IPPool kube-system/192.0.2.0-26") {
		t.Errorf("the pools are not taken over: %s", out)
	}

	c.killed(a, "migrate", "whereabouts", "--yes")
	if got := b.Run(b.call("ADD", "whereabouts", "late")); got.Code == 0 || !strings.Contains(got.Stdout, "taken over by cnibox") {
		t.Errorf("whereabouts gives an address of cnibox: %s", got.Stdout)
	}
	if allocated, reserved := c.pool(); len(allocated)+len(reserved) > 0 {
		t.Errorf("whereabouts has %v and %v", allocated, reserved)
	}
	if out := b.command(b.migrate("migrate", "whereabouts", "--yes")...); strings.Contains(out, "exit code") {
		t.Fatal(out)
	}
	if got := []int{a.leases(), b.leases()}; got[0] != 15 || got[1] != 15 {
		t.Errorf("the nodes have %v leases of 30", got)
	}
	for i := range 10 {
		c.del(c.nodes[i%2], fmt.Sprint("old-", i))
	}
	for i := range 20 {
		c.add(c.nodes[i%2], fmt.Sprint("new-", i))
	}
	c.del(a, "new-0")

	if out := b.command(b.migrate("migrate", "whereabouts", "--back", "--yes", "--kubeconfig-file", b.config)...); !strings.Contains(out, "agents of a,") {
		t.Errorf("the agent of a has its blocks: %s", out)
	}
	if got := b.Run(b.call("ADD", "whereabouts", "late")); got.Code == 0 {
		t.Errorf("whereabouts gives an address before all nodes have returned theirs: %s", got.Stdout)
	}
	c.add(a, "new-20") // a has its blocks until its agent writes the containers into them
	c.killed(a, "migrate", "whereabouts", "--back", "--yes")
	allocated, reserved := c.pool()
	c.sameAsHeld(allocated, "the pool")
	c.sameAsHeld(reserved, "the reservations")
	if got := a.Fail(a.call("ADD", "range", "late"), 11); !strings.Contains(got.Stdout, "IPPool kube-system/192.0.2.0-26") {
		t.Errorf("cnibox gives an address of whereabouts: %s", got.Stdout)
	}
	if out := b.command(b.migrate("migrate", "whereabouts", "--back", "--yes")...); strings.Contains(out, "exit code") {
		t.Error(out)
	}
	c.del(a, "old-10")
	c.del(b, "new-1")
	c.add(a, "again-0")
	c.add(b, "again-1")
	allocated, reserved = c.pool()
	c.sameAsHeld(allocated, "the pool")
	c.sameAsHeld(reserved, "the reservations")
}

// refusesReturn reserves an address of the pool lan-10.9.0.0-24, and tries to return the pool.
func (c *rangeCluster) refusesReturn(n *rangeNode) {
	c.t.Helper()
	page := object{"pool": "lan", "first": "10.9.0.0", "revision": 1, "blocks": []object{{"first": "10.9.0.8", "last": "10.9.0.8", "reserved": "r", "since": "2026-01-01T00:00:00Z"}}}
	raw, err := json.Marshal(page)
	must(c.t, err)
	sum := sha256.Sum256([]byte("lan"))
	c.Must(c.t, http.MethodPost, "/api/v1/namespaces/"+kube.DefaultNamespace+"/configmaps", "", object{
		"metadata": object{"name": fmt.Sprintf("cnibox-range-%x-10-9-0-0", sum[:8]), "labels": object{"cnibox.io/range": "page"}}, "data": object{"page": string(raw)},
	})
	if out := n.command(n.migrate("migrate", "whereabouts", "--back", "--yes", "--kubeconfig-file", n.config)...); !strings.Contains(out, "a reservation of cnibox has 10.9.0.8") {
		c.t.Errorf("return beside a reservation: %s", out)
	}
}

// TestKubeWhereaboutsRefused: pools that cannot be taken over stay as they are. The address of a pod that does not exist is free.
func TestKubeWhereaboutsRefused(t *testing.T) {
	c := newRangeCluster(t)
	n := c.nodes[0]
	const pools = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools"
	page := object{"first": "10.9.0.0", "revision": 1, "blocks": []object{
		{"first": "10.9.0.1", "last": "10.9.0.4", "node": "b", "machine": "m", "since": "2026-01-01T00:00:00Z"},
		{"first": "10.9.0.200", "last": "10.9.0.200", "reserved": "r", "since": "2026-01-01T00:00:00Z"},
	}}
	raw, err := json.Marshal(page)
	must(t, err)
	c.Must(t, http.MethodPost, "/api/v1/namespaces/"+kube.DefaultNamespace+"/configmaps", "", object{
		"metadata": object{"name": "cnibox-range-10-9-0-0", "labels": object{"cnibox.io/range": "page"}}, "data": object{"page": string(raw)},
	})
	for _, tc := range []struct{ name, of, offset, want string }{
		{"10.1.0.0-24", "10.1.0.0/24", "x", `allocation "x": correct or delete it`},
		{"10.1.0.0-24", "10.1.0.0/24", "256", `allocation "256": correct or delete it`},
		{"10.1.0.0-24", "10.1.0.0/24", "5", `10.1.0.5 of pod "default/none" has no OverlappingRangeIPReservation`},
		{"10.9.0.0-24", "10.9.0.0/24", "", "node b has the block 10.9.0.1-10.9.0.4 of cnibox"},
		{"10.9.0.192-26", "10.9.0.192/26", "", "a reservation of cnibox has 10.9.0.200"},
		{"other", "10.1.0.0/24", "", "the name of a pool of 10.1.0.0/24 ends with 10.1.0.0-24"},
		{"10.1.0.0-24", "10.1.0.0", "", `its range is "10.1.0.0": correct it, or delete the pool`},
		{"lan-10.9.0.0-24", "10.9.0.0/24", "7", ""},
	} {
		allocations := object{}
		if tc.offset != "" {
			allocations[tc.offset] = object{"id": "c", "podref": "default/none", "ifname": "net1"}
		}
		if tc.want == "" {
			c.Must(t, http.MethodPost, "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/overlappingrangeipreservations", "", object{
				"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
				"metadata": object{"name": "lan-10.9.0.7"}, "spec": object{"podref": "default/none"},
			})
			c.agent(n)
		}
		c.Must(t, http.MethodPost, pools, "", object{
			"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
			"metadata": object{"name": tc.name}, "spec": object{"range": tc.of, "allocations": allocations},
		})
		out := n.command(n.migrate("migrate", "whereabouts", "--yes", "--kubeconfig-file", n.config)...)
		if !strings.Contains(out, tc.want) || strings.Contains(out, "exit code") != (tc.want != "") {
			t.Errorf("%s: want %q: %s", tc.name, tc.want, out)
		}
		var pool kube.IPPool
		must(t, json.Unmarshal(c.Must(t, http.MethodGet, pools+"/"+tc.name, "", nil), &pool))
		if tc.want != "" && (pool.Spec.Range != tc.of || len(pool.Spec.Allocations) != len(allocations)) || tc.want == "" && !pool.Moved() {
			t.Errorf("%s: %+v", tc.name, pool)
		}
		if tc.want == "" {
			c.refusesReturn(n)
		}
		c.Must(t, http.MethodDelete, pools+"/"+tc.name, "", nil)
	}
	if out := c.Kubectl(t, "get", "configmaps", "-n", kube.DefaultNamespace, "-o", "yaml"); strings.Contains(out, "default/none") {
		t.Errorf("the address of a pod that does not exist is in use: %s", out)
	}
}
