package policy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/test/await"
)

// TestAttachedBefore: pods of one bridge that were attached before policies were enforced are filtered when the agent begins.
func TestAttachedBefore(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	for _, name := range []string{"iptables", "ip6tables"} { // as on a node without another program that filters bridges
		path := "/proc/sys/net/bridge/bridge-nf-call-" + name
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.WriteFile(path, []byte("1"), 0) })
	}
	near, web := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web"))
	n.cache(web)
	n.cache(near)
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.more(denied, "without the agent")
	n.start()
	awaitRules(t, "10.1.0.3")
	n.stops(denied, allowed, "after the agent's start")
}

// cache writes what libcni keeps of an ADD.
func (n *node) cache(p *pod) {
	n.t.Helper()
	dir := recovery.CacheDirs(n.RunDir())[1]
	c := recovery.CacheEntry{Kind: recovery.CacheKind, ContainerID: p.call.ID, IfName: "eth0", Network: "net1", Netns: p.ns.Path(), Config: []byte(p.call.Conf)}
	for pair := range strings.SplitSeq(p.call.Args, ";") {
		k, v, _ := strings.Cut(pair, "=")
		c.Args = append(c.Args, [2]string{k, v})
	}
	var conf struct{ RuntimeConfig map[string]json.RawMessage }
	err := json.Unmarshal(c.Config, &conf)
	var b []byte
	if err == nil {
		c.CapabilityArgs = conf.RuntimeConfig
		b, err = json.Marshal(c)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "net1-"+p.call.ID+"-eth0"), b, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// TestLostState: after the node's state was lost the policies apply to the pods that the runtime's cache names. A pod without
// one is denied everything.
func TestLostState(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	near, web, other := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web")), n.add(n.pod(1, 4, "app=other"))
	n.cache(near)
	n.cache(web)
	allowed, denied, lost := n.sink(web, 80), n.sink(web, 81), n.sink(other, 80)
	n.flood(near, web)
	n.flood(near, other)
	n.more(allowed, "the allowed port")
	n.more(lost, "a pod that no policy selects")
	stop()
	files, err := filepath.Glob(filepath.Join(n.RunDir(), "*", "node.db"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	run(t, "nft flush ruleset") // so that the rules do not come from the old state
	n.add(n.pod(1, 5, ""))      // rebuilds the state
	n.start()
	awaitRules(t, "10.1.0.3")
	awaitDenied(t, "10.1.0.4")
	n.stops(lost, allowed, "a pod that is not known")
	n.stops(denied, allowed, "after the loss of the state")
}

// awaitDenied waits until a pod has the chain that drops everything.
func awaitDenied(t *testing.T, address string) {
	t.Helper()
	await.Until(t, func() bool { return strings.Contains(listed(t, "pod_ingress4"), address+" : goto deny") }, func() string { return address + " is not denied" })
}

// TestAnnotations: a runtime's annotations are the labels of a pod if the network names their keys, also of one that was attached before
// policies were enforced. One that cannot be a label is left out.
func TestAnnotations(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	annotated := func(host int, keys string) *pod {
		p := n.pod(1, host, "")
		p.call.Conf = strings.Replace(p.call.Conf, `"type":"bridge"`, `"type":"bridge",`+keys+`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"app":"web","note":"two words"}}`, 1)
		return n.add(p)
	}
	const keys = `"policyLabels":["app","note"],`
	near, before := n.add(n.pod(1, 2, "")), annotated(3, keys)
	n.cache(before)
	n.cache(near)
	n.start()
	awaitRules(t, "10.1.0.3")
	web := annotated(4, keys)
	annotated(5, "")
	if strings.Contains(listed(t, "pod_ingress4"), "10.1.0.5") {
		t.Error("an annotation that the network does not name is a label")
	}
	for _, p := range []*pod{before, web} {
		allowed, denied := n.sink(p, 80), n.sink(p, 81)
		n.flood(near, p)
		n.more(allowed, "the allowed port")
		n.none(denied, p.call.ID)
	}
}
