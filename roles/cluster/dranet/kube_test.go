//go:build kube

package dranet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

const claimsPath = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

// claims are the ResourceClaims of an API server. Their names are those of the tests, and their UIDs are the server's.
type claims struct {
	*kubetest.Server
	t *testing.T
}

// create makes a ResourceClaim and returns its UID.
func (s *claims) create(name string) string {
	s.t.Helper()
	var o struct{ Metadata struct{ UID string } }
	must(s.t, json.Unmarshal(s.Must(s.t, http.MethodPost, claimsPath, "", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"devices": map[string]any{"requests": []any{map[string]any{"name": "nic", "exactly": map[string]any{"deviceClassName": "dra.net"}}}}},
	}), &o))
	return o.Metadata.UID
}

func (s *claims) remove(name string) { s.Must(s.t, http.MethodDelete, claimsPath+"/"+name, "", nil) }

// startKube starts an API server. The provider's account has exactly the rights of examples/kubernetes/dranet.yaml, whose objects
// the server accepts.
func startKube(t *testing.T) (s *claims, flags []string) {
	t.Helper()
	runtime.LockOSThread() // the server ends with the thread that started it
	t.Cleanup(runtime.UnlockOSThread)
	k, err := kubetest.Start(kubetest.DebianEtcd)
	must(t, err)
	t.Cleanup(k.Stop)
	k.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "kube-system"}}, http.StatusConflict)
	k.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "default"}}, http.StatusConflict)
	k.Kubectl(t, "apply", "-f", "../../../examples/kubernetes/dranet.yaml")
	kubeconfig := k.Kubeconfig(t, k.Address, k.Token(t, "kube-system", "cnibox-dranet"))
	return &claims{k, t}, []string{"--kubeconfig-file=" + kubeconfig, "--collect-interval=100ms"}
}

// collected waits until a node has leases for these devices only.
func (c *computer) collected(want ...string) {
	c.t.Helper()
	var got []string
	await.Until(c.t, func() bool {
		got = nil
		for by := range c.leases() {
			got = append(got, by)
		}
		slices.Sort(got)
		slices.Sort(want)
		return slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("%v, want %v%s", got, want, c.logged()) })
}

// TestCollectKube: addresses of deleted ResourceClaims are released, also those that a killed provider has given, and no others: not
// while the API server does not answer, and not without the right to list.
func TestCollectKube(t *testing.T) {
	s, flags := startKube(t)
	c := newComputer(t, clusterDir(t), "a", flags...)
	c.start()
	kept, gone, later := s.create("kept"), s.create("gone"), s.create("later")
	for _, uid := range []string{kept, gone, later} {
		c.get(uid, "eth1")
		c.get(uid, "eth2")
	}
	addr := c.get(kept, "eth1")
	c.kill(&c.dranet)
	s.remove("gone")
	c.startProvider()
	c.collected(kept+"/eth1", kept+"/eth2", later+"/eth1", later+"/eth2")

	// Without the right, and without a server, nothing is released: the second refusal comes after a first one.
	const role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/cnibox-dranet"
	var rules struct {
		Rules []kubetest.Rule `json:"rules"`
	}
	must(t, json.Unmarshal(s.Must(t, http.MethodGet, role, "", nil), &rules))
	s.Must(t, http.MethodPatch, role, "application/merge-patch+json", map[string]any{"rules": []any{}})
	c.logs("403 Forbidden")
	s.remove("later")
	c.get(kept, "eth3")
	if n := len(c.leases()); n != 5 {
		t.Errorf("%d leases", n)
	}
	s.Must(t, http.MethodPatch, role, "application/merge-patch+json", rules)
	c.collected(kept+"/eth1", kept+"/eth2", kept+"/eth3")
	s.StopAPI()
	c.logs("registry unavailable")
	if got := c.get(kept, "eth1"); got != addr {
		t.Errorf("%s, had %s", got, addr)
	}
	must(t, s.StartAPI())
	s.remove("kept")
	c.collected()
}

// logs waits until the provider has logged a text.
func (c *computer) logs(text string) {
	c.t.Helper()
	await.Until(c.t, func() bool {
		raw, _ := os.ReadFile(c.path("dranet.log"))
		return strings.Contains(string(raw), text)
	}, func() string { return "not logged: " + text + c.logged() })
}

// TestReplayKube is TestReplay with ResourceClaims and without repeated releases: half of them are lost. What is lost is collected, and
// no address of a claim that exists is.
func TestReplayKube(t *testing.T) {
	s, flags := startKube(t)
	cluster := clusterDir(t)
	g := newGame(t)
	var mu sync.Mutex
	names := map[string]string{}
	g.claim = func(name string) string {
		uid := s.create(name)
		mu.Lock()
		defer mu.Unlock()
		names[uid] = name
		return uid
	}
	g.retire = func(uid string) {
		mu.Lock()
		defer mu.Unlock()
		s.remove(names[uid])
	}
	var nodes []*computer
	for i := range 3 {
		c := newComputer(t, cluster, fmt.Sprint("node-", i), flags...)
		c.start()
		nodes = append(nodes, c)
	}
	g.play(nodes, soak())
	g.compare(nodes)
	for _, c := range nodes {
		var want []string
		for by := range g.held {
			if g.on[by] == c {
				want = append(want, by)
			}
		}
		c.collected(want...)
	}
}

// TestDraNetKube: DraNet's own client of its webhook, with its merge and its validation.
func TestDraNetKube(t *testing.T) {
	client, err := filepath.Abs("../../../bin/kube/dranet")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(client); err != nil {
		t.Fatalf("%v: run make bin/kube/dranet", err)
	}
	c := newComputer(t, clusterDir(t), "a")
	c.start()
	run := func(args ...string) (out, fault string) {
		t.Helper()
		cmd := exec.Command(client, append([]string{"unix://" + c.socket()}, args...)...)
		raw, err := cmd.Output()
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			return string(raw), string(ended.Stderr)
		}
		must(t, err)
		return string(raw), ""
	}
	const user = `{"profile": "lan", "interface": {"name": "net0", "mtu": 1400, "addresses": ["192.0.2.9/32"]}, "routes": [{"destination": "10.0.0.0/8", "gateway": "10.9.0.7"}]}`
	out, fault := run("prepare", "uid-1", "eth1", user)
	var conf struct {
		Profile   string
		Interface struct {
			Name      string
			MTU       int
			Addresses []netip.Prefix
		}
		Routes []struct{ Destination, Gateway string }
	}
	must(t, json.Unmarshal([]byte(out), &conf))
	a := c.leases()["uid-1/eth1"]
	if conf.Profile != "lan" || conf.Interface.Name != "net0" || conf.Interface.MTU != 1400 || len(conf.Interface.Addresses) != 2 || conf.Interface.Addresses[0] != netip.PrefixFrom(a, 26) ||
		len(conf.Routes) != 2 || conf.Routes[0].Gateway != "10.9.0.2" || conf.Routes[1].Gateway != "10.9.0.7" {
		t.Errorf("%s %s", out, fault)
	}
	if again, _ := run("prepare", "uid-1", "eth1", user); again != out {
		t.Errorf("%s, before %s", again, out)
	}
	if _, fault := run("prepare", "uid-2", "eth1", strings.Replace(user, "192.0.2.9/32", a.String()+"/26", 1)); !strings.Contains(fault, "HTTP 409: ") {
		t.Errorf("an address that is in use: %s", fault)
	}
	if _, fault := run("prepare", "uid-2", "eth1", `{"profile": "none", "interface": {}}`); !strings.Contains(fault, "HTTP 404: unknown profile") {
		t.Errorf("an unknown profile: %s", fault)
	}
	if _, fault := run("release", "uid-1", "eth1", user); fault != "" || len(c.leases()) != 0 {
		t.Errorf("%s, %v", fault, c.leases())
	}
}
