//go:build cluster

package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// deployment is pods on all nodes, with a limit in Kubernetes' form.
const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata:
      labels: {app: %[1]s}
      annotations: {kubernetes.io/ingress-bandwidth: 8M}
    spec:
      terminationGracePeriodSeconds: 0
      automountServiceAccountToken: false
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: %[1]s}}}
      containers: [{name: web, image: "localhost/web:1", imagePullPolicy: Never}]
`

// TestCluster applies examples/kubernetes as it is to two nodes with containerd 1.6 and one with 2, which become ready. Connections between the pods of the
// deployment web stay open in all that follows: the DaemonSet changes to another version and back, deleted files come back, another
// deployment grows to 60 pods and shrinks to none, agents, kubelets and containerds are killed, the API server is away. The pods of
// that deployment leave nothing. Then a node reboots. The second kustomization waits until the pods are gone and then leaves nothing.
func TestCluster(t *testing.T) {
	c := newCluster(t, 2, 1)
	before := map[string][]string{}
	for _, n := range c.nodes {
		before[n.name] = n.linkNames(t)
		c.within(t, "False", "get", "node", n.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	}
	program := filepath.Join(root(t), "bin", "cnibox")
	c.load(t, image(t, program, "v0.1.0"))
	c.load(t, image(t, changed(t, program), "v0.1.1"))
	c.step(t, "three nodes")
	c.install(t)
	c.deploy(t, "web", 6)
	c.deploy(t, "many", 0)
	for _, n := range c.nodes {
		if out := n.run(t, "tc", "qdisc"); strings.Count(out, "rate 8Mbit burst 256Kb") != 2 {
			t.Errorf("the bandwidth of the pods on %s is not limited: %s", n.name, out)
		}
	}
	pods := c.placedPods(t, "app=web", c.nodes...)
	if len(pods) != 6 {
		t.Fatalf("6 pods are attached as %+v", pods)
	}
	tr := newTraffic(t, pods)
	idle := c.inventory(t)
	c.step(t, "install")

	c.upgrade(t)
	tr.check(t, "upgrade and downgrade")
	c.restoreFiles(t)
	c.step(t, "upgrade")
	c.scale(t, "many", 60)
	c.sound(t)
	c.step(t, "60 pods")
	c.scale(t, "many", 0)
	c.unchanged(t, idle, "60 pods were deleted")
	tr.check(t, "0 to 60 to 0 pods")
	c.step(t, "0 pods")
	kills := c.disturb(t)
	c.unchanged(t, idle, "agents, kubelets and containerds were killed")
	tr.check(t, kills)
	c.step(t, kills)
	c.withoutAPI(t)
	c.unchanged(t, idle, "the API server was away")
	tr.check(t, "without the API server")
	c.step(t, "API server away")
	tr.close()

	c.rebootNode(t, c.nodes[2])
	c.step(t, "reboot")
	c.uninstall(t, before)
	c.step(t, "uninstall")
}

// step logs the time since the last step.
func (c *cluster) step(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %.1f s", what, time.Since(c.last).Seconds())
	c.last = time.Now()
}

// changed returns a copy of a program that is another version.
func changed(t *testing.T, program string) string {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	writeFile(t, other, string(data)+"another version")
	return other
}

// install applies examples/kubernetes and waits until all nodes are ready.
func (c *cluster) install(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-k", filepath.Join(root(t), "examples", "kubernetes"))
	c.rollout(t)
	c.kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout=2m")
	for _, n := range c.nodes {
		if got := n.run(t, "sysctl", "-n", "net.ipv6.conf.flannel/1.accept_ra", "net.ipv6.conf.flannel/1.addr_gen_mode", "net.ipv4.ip_forward"); got != "0\n1\n1\n" {
			t.Errorf("the agent of %s set %q", n.name, got)
		}
		n.run(t, "/opt/cni/bin/cnibox", "status", "/etc/cni/net.d/10-cnibox.conflist")
		version := c.kubectl(t, "get", "node", n.name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")
		if want := map[bool]string{false: "containerd://1.", true: "containerd://2."}[n.containerd2]; !strings.HasPrefix(version, want) {
			t.Errorf("%s runs %s, want %s", n.name, version, want)
		}
	}
}

// deploy makes a deployment and waits for its pods.
func (c *cluster) deploy(t *testing.T, name string, replicas int) {
	t.Helper()
	file := filepath.Join(c.dir, name+".yaml")
	writeFile(t, file, fmt.Sprintf(deployment, name, replicas))
	c.kubectl(t, "apply", "-f", file)
	c.scale(t, name, replicas)
}

// scale waits until a deployment has exactly this number of pods and all are ready.
func (c *cluster) scale(t *testing.T, name string, replicas int) {
	t.Helper()
	c.kubectl(t, "scale", "deployment/"+name, "--replicas="+strconv.Itoa(replicas))
	c.kubectl(t, "rollout", "status", "deployment/"+name, "--timeout=4m")
	c.within(t, strings.TrimSpace(strings.Repeat("True ", replicas)), "get", "pods", "-l", "app="+name, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
}

// upgrade changes the image of the DaemonSet to another version and back.
func (c *cluster) upgrade(t *testing.T) {
	t.Helper()
	for _, version := range []string{"v0.1.1", "v0.1.0"} {
		c.kubectl(t, "-n", "kube-system", "set", "image", "daemonset/cnibox", "agent=ghcr.io/cnibox/cnibox:"+version)
		c.rollout(t)
	}
}

// restoreFiles deletes files that the agent installed, and waits until they are back.
func (c *cluster) restoreFiles(t *testing.T) {
	t.Helper()
	for _, file := range []string{"/etc/cni/net.d/10-cnibox.conflist", "/opt/cni/bin/cnibox", "/opt/cni/bin/chain"} {
		c.run(t, "rm", file)
		await.Until(t, func() bool { _, ok := c.try(t, "test", "-e", file); return ok }, func() string { return file + " does not come back" })
	}
}

// inventory lists what the pods of all nodes have: devices, namespaces, attachments, leases and elements of nftables.
func (c *cluster) inventory(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, n := range c.nodes {
		var state struct {
			Attachments []struct{ Network, ContainerID, Netns string }
			Leases      []map[string]any
		}
		decode(t, n.run(t, filepath.Join(root(t), "bin", "cnibox"), "state", "--json"), &state)
		files, _ := n.try(t, "find", "/run/netns", "/var/lib/cni", "-type", "f", "!", "-name", "lock") // it fails if one is deleted meanwhile
		has := append(n.linkNames(t), strings.Split(files, "\n")...)
		for _, a := range state.Attachments {
			has = append(has, fmt.Sprintf("attachment %+v", a))
		}
		for _, l := range state.Leases {
			has = append(has, fmt.Sprintf("lease %v", l["address"]))
		}
		for table := range strings.Lines(n.run(t, "nft", "list", "tables")) {
			if strings.Contains(table, "cnibox") {
				has = append(has, strings.Split(n.run(t, append([]string{"nft", "-s", "list"}, strings.Fields(table)...)...), "\n")...)
			}
		}
		slices.Sort(has)
		for _, line := range has {
			all = append(all, n.name+": "+line)
		}
	}
	return all
}

// unchanged waits until the inventory is as it was.
func (c *cluster) unchanged(t *testing.T, want []string, after string) {
	t.Helper()
	var got []string
	await.Until(t, func() bool { got = c.inventory(t); return slices.Equal(got, want) }, func() string {
		left := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return slices.Contains(want, s) })
		gone := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(got, s) })
		return fmt.Sprintf("after %s are left %q and missing %q", after, left, gone)
	})
	c.sound(t)
}

// sound checks that no attachment differs from its specification and that doctor finds nothing.
func (c *cluster) sound(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		for _, verb := range [][]string{{"check", "--all"}, {"doctor"}} {
			if out, ok := n.try(t, append([]string{"/opt/cni/bin/cnibox"}, verb...)...); !ok {
				t.Errorf("%q of %s: %s", verb, n.name, out)
			}
		}
	}
}

// soak returns the time for which a test disturbs the cluster: CNIBOX_SOAK seconds.
func soak(t *testing.T) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(cmp.Or(os.Getenv("CNIBOX_SOAK"), "10"))
	if err != nil {
		t.Fatalf("CNIBOX_SOAK: %v", err)
	}
	return time.Duration(seconds) * time.Second
}

// removeUnused removes the namespaces without another interface than lo, and prints what they have. A containerd that is killed before
// it stores a pod's sandbox leaves such a namespace, which it does not know any more. If it is killed before it mounts the namespace
// or after it unmounted it, a file stays that is no namespace.
const removeUnused = `for f in /run/netns/*; do
	if ! links=$(nsenter --net=$f ip -br link); then
		rm $f && echo "$f is no namespace"
	elif [ "$(echo "$links" | cut -d " " -f 1)" = lo ]; then
		umount $f && rm $f && echo "$f has $links"
	fi
done 2>/dev/null
true` // the runtime may remove another one meanwhile

// disturb kills agents, kubelets and containerds of random nodes at random times while pods come and go.
func (c *cluster) disturb(t *testing.T) (kills string) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	programs := []string{"cnibox", "kubelet", "cnibox", "containerd"}
	killed := map[string]int{}
	next := 0
	for end := time.Now().Add(soak(t)); time.Now().Before(end); {
		replicas := 5 + random.IntN(25)
		c.kubectl(t, "scale", "deployment/many", "--replicas="+strconv.Itoa(replicas))
		for range 1 + random.IntN(3) {
			n := c.nodes[random.IntN(len(c.nodes))]
			program := programs[next%len(programs)]
			next++
			if _, ok := n.try(t, "pkill", "-KILL", "-x", program); ok {
				killed[program]++
			}
			<-time.After(time.Duration(random.IntN(1000)) * time.Millisecond) // at any point of its work
		}
	}
	c.rollout(t)
	c.scale(t, "many", 0)
	for _, n := range c.nodes {
		t.Logf("left by the runtime of %s: %q", n.name, n.run(t, "sh", "-c", removeUnused))
	}
	return fmt.Sprintf("%d agents, %d kubelets and %d containerds killed", killed["cnibox"], killed["kubelet"], killed["containerd"])
}

// withoutAPI kills the API server for half of the soak, for two minutes at most. Agents that are killed meanwhile change nothing.
func (c *cluster) withoutAPI(t *testing.T) {
	t.Helper()
	c.kill(t, "kube-apiserver")
	for _, n := range c.nodes {
		n.kill(t, "cnibox")
	}
	<-time.After(min(soak(t)/2, 2*time.Minute))
	c.startAPI(t)
	c.kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout=2m")
	c.rollout(t)
	c.scale(t, "many", 6)
	c.scale(t, "many", 0)
}

// rebootNode reboots a node while pods of the other nodes are connected. Its pods come back and reach all others.
func (c *cluster) rebootNode(t *testing.T, n *node) {
	t.Helper()
	others := slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
	tr := newTraffic(t, c.placedPods(t, "app=web", others...))
	boot := n.run(t, "cat", bootID)
	n.reboot(t)
	if now := n.run(t, "cat", bootID); now == boot {
		t.Fatalf("%s has boot ID %q as before", n.name, now)
	}
	await.Until(t, func() bool {
		out, _ := c.try(t, kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig, "get", "node", n.name, "-o", "jsonpath={.status.nodeInfo.bootID}")
		return out == strings.TrimSpace(n.run(t, "cat", bootID))
	}, func() string { return n.name + " does not report its boot ID" })
	c.kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout=2m")
	c.rollout(t)
	c.scale(t, "web", 6)
	var pods []placed
	await.Until(t, func() bool { pods = c.placedPods(t, "app=web", c.nodes...); return len(pods) == 6 }, func() string {
		return fmt.Sprintf("6 pods are attached as %+v after the reboot", pods)
	})
	tr.check(t, "pods of other nodes while a node reboots")
	tr.close()
	all := newTraffic(t, pods)
	all.check(t, "after the reboot")
	all.close()
	c.sound(t)
}

// uninstall applies the second kustomization.
func (c *cluster) uninstall(t *testing.T, before map[string][]string) {
	t.Helper()
	c.kubectl(t, "apply", "-k", filepath.Join(root(t), "examples", "kubernetes-uninstall"))
	var log string
	await.Until(t, func() bool {
		log, _ = c.try(t, kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig, "-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=cnibox", "--tail=-1", "--ignore-errors", "--prefix")
		return strings.Contains(log, " by cnibox, for example ") // the scheduler chooses how many are on a node, or none
	}, func() string { return "uninstall does not wait for the pods: " + log })
	c.kubectl(t, "delete", "deployment", "web", "many")
	c.rollout(t)
	for _, n := range c.nodes {
		if out := n.run(t, "find", "/etc/cni", "/opt/cni", "/run/cnibox", "/run/flannel", "!", "-type", "d"); out != "" {
			t.Errorf("files are left on %s: %s", n.name, out)
		}
		if got := n.linkNames(t); !slices.Equal(got, before[n.name]) {
			t.Errorf("%s has links %q, before %q", n.name, got, before[n.name])
		}
		if out := n.run(t, "sh", "-c", "nft list tables | grep cnibox || true"); out != "" {
			t.Errorf("tables are left on %s: %s", n.name, out)
		}
		if out := c.kubectl(t, "get", "node", n.name, "-o", "jsonpath={.metadata.annotations}"); strings.Contains(out, "flannel") {
			t.Errorf("annotations are left on %s: %s", n.name, out)
		}
	}
	c.kubectl(t, "delete", "-k", filepath.Join(root(t), "examples", "kubernetes-uninstall"))
	for _, n := range c.nodes {
		c.within(t, "False", "get", "node", n.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	}
}

// rollout waits until all pods of the DaemonSet run the present template and are ready.
func (c *cluster) rollout(t *testing.T) {
	t.Helper()
	kubectl := []string{kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig, "-n", "kube-system"}
	if out, ok := c.try(t, append(kubectl, "rollout", "status", "daemonset/cnibox", "--timeout=3m")...); !ok {
		pods, _ := c.try(t, append(kubectl, "describe", "pod")...)
		logs, _ := c.try(t, append(kubectl, "logs", "daemonset/cnibox")...)
		t.Fatalf("%s\n%s\n%s", out, pods, logs)
	}
}
