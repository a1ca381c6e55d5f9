//go:build cluster

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// cluster is a Kubernetes of one node.
type cluster struct {
	*host
	kubeconfig string
}

const (
	clusterNode, clusterIP = "node-a", "192.0.2.11"
	// serviceIP is the API server's, to which nft leads in place of kube-proxy.
	serviceIP = "10.96.0.1"
)

// clusterScript makes the host a node with an interface of its own and without any plugin.
const clusterScript = `set -e
mkdir -p /etc/cni /opt/cni
mount -t tmpfs tmpfs /etc/cni
mount -t tmpfs tmpfs /opt/cni
ip link add eth0 type veth peer name wire
ip addr add ` + clusterIP + `/24 dev eth0
ip link set eth0 up
ip link set wire up
ip route add default via 192.0.2.1
sysctl -qw net.ipv4.ip_forward=0
nft add table ip services
nft add chain ip services output '{ type nat hook output priority -100; }'
nft add rule ip services output ip daddr ` + serviceIP + ` tcp dport 443 dnat to ` + clusterIP + `:6443
`

const kubeletConf = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: %s
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
containerRuntimeEndpoint: unix://%s
registryPullQPS: 0
`

// kubeconfigOf writes a kubeconfig with a token.
func (c *cluster) kubeconfigOf(t *testing.T, token string) string {
	path := filepath.Join(c.dir, token+".kubeconfig")
	writeFile(t, path, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://`+clusterIP+`:6443", insecure-skip-tls-verify: true}}]
users: [{name: c, user: {token: `+token+`}}]
contexts: [{name: c, context: {cluster: c, user: c}}]
current-context: c
`)
	return path
}

// kubectl runs kubectl as the administrator.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, append([]string{kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig}, args...)...)
}

// try reports whether a command succeeds, and its output.
func (c *cluster) try(t *testing.T, args ...string) (string, bool) {
	out, err := c.command(t.Context(), args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err == nil
}

// within waits until kubectl prints a text.
func (c *cluster) within(t *testing.T, want string, args ...string) {
	t.Helper()
	var out string
	await.Until(t, func() bool {
		out, _ = c.try(t, append([]string{kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig}, args...)...)
		return out == want
	}, func() string { return fmt.Sprintf("kubectl %q says %q, want %q", args, out, want) })
}

// newCluster starts etcd, the control plane, containerd and a kubelet.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{host: newHost(t)}
	c.kubeconfig = c.kubeconfigOf(t, "admin")
	c.run(t, "sh", "-c", clusterScript)
	file := func(name string) string { return filepath.Join(c.dir, name) }
	writeFile(t, file("tokens.csv"), "admin,admin,1,system:masters\nkubelet,system:node:"+clusterNode+",2,system:nodes\n")
	writeFile(t, file("sa.key"), serviceAccountKey(t))
	c.start(t, kubetest.Built("etcd"), "--data-dir", file("etcd"), "--log-level", "error", "--unsafe-no-fsync")
	c.start(t, kubetest.Built("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--service-account-key-file="+file("sa.key"),
		"--service-account-signing-key-file="+file("sa.key"), "--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file="+file("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--cert-dir="+file("pki"), "--advertise-address="+clusterIP, "--service-cluster-ip-range=10.96.0.0/16",
		"--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP")
	c.within(t, "ok", "get", "--raw", "/readyz")
	c.start(t, kubetest.Built("kube-controller-manager"), "--kubeconfig="+c.kubeconfig, "--service-account-private-key-file="+file("sa.key"), "--leader-elect=false",
		"--root-ca-file="+file("pki/apiserver.crt"), "--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/16", "--cert-dir="+file("kcm"))
	c.start(t, kubetest.Built("kube-scheduler"), "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--cert-dir="+file("scheduler"))
	writeFile(t, file("containerd.toml"), fmt.Sprintf(containerdConf, c.dir, containerdSocket, "/opt/cni/bin", "/etc/cni/net.d"))
	c.start(t, "containerd", "--config", file("containerd.toml"))
	await.Until(t, func() bool { _, ok := c.try(t, "ctr", "--address", containerdSocket, "version"); return ok }, func() string { return "containerd does not answer" })
	c.load(t, writeImage(t, "localhost/pause:1", "/bin/sleep", "100000"))
	c.load(t, writeImage(t, "localhost/web:1", "/bin/busybox", "httpd", "-f", "-p", "80"))
	writeFile(t, file("kubelet.yaml"), fmt.Sprintf(kubeletConf, c.cgroup, containerdSocket))
	c.start(t, kubetest.Built("kubelet"), "--config="+file("kubelet.yaml"), "--kubeconfig="+c.kubeconfigOf(t, "kubelet"), "--hostname-override="+clusterNode,
		"--node-ip="+clusterIP, "--root-dir=/var/lib/kubelet", "--cert-dir="+file("kubelet"))
	return c
}

// serviceAccountKey returns a new key that signs the tokens of service accounts.
func serviceAccountKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// load imports an image.
func (c *cluster) load(t *testing.T, file string) {
	t.Helper()
	c.run(t, "ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", file)
}

// image makes cnibox's container image, as a release does.
func image(t *testing.T, program, version string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image")
	cmd := exec.Command("go", "run", "../../cmd/release", "-program", program, "-version", version, "-out", out)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make image: %v: %s", err, text)
	}
	return filepath.Join(out, "cnibox-"+version+"-image.oci.tar")
}

// deployment is two pods with a limit in Kubernetes' form.
const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {kubernetes.io/ingress-bandwidth: 8M}
    spec:
      terminationGracePeriodSeconds: 0
      automountServiceAccountToken: false
      containers: [{name: web, image: "localhost/web:1", imagePullPolicy: Never}]
`

// TestCluster applies examples/kubernetes as it is. The node becomes ready and its pods reach each other,
// without an interruption while the DaemonSet changes to another version and back. Deleted files come back.
// The second kustomization waits until the pods are gone and then leaves nothing.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	program := filepath.Join(root(t), "bin", "cnibox")
	c.load(t, image(t, program, "v0.1.0"))
	other := filepath.Join(c.dir, "other")
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, other, string(data)+"another version")
	c.load(t, image(t, other, "v0.1.1"))
	const rules = "nft list tables | grep cnibox || true"
	before := c.linkNames(t)
	c.within(t, "False", "get", "node", clusterNode, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	examples := filepath.Join(root(t), "examples")

	c.kubectl(t, "apply", "-k", filepath.Join(examples, "kubernetes"))
	c.rollout(t)
	c.within(t, "True", "get", "node", clusterNode, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if got := c.run(t, "sysctl", "-n", "net.ipv6.conf.flannel/1.accept_ra", "net.ipv6.conf.flannel/1.addr_gen_mode", "net.ipv4.ip_forward"); got != "0\n1\n1\n" {
		t.Errorf("the agent set %q", got)
	}
	c.run(t, "/opt/cni/bin/cnibox", "status", "/etc/cni/net.d/10-cnibox.conflist")
	writeFile(t, filepath.Join(c.dir, "web.yaml"), deployment)
	c.kubectl(t, "apply", "-f", filepath.Join(c.dir, "web.yaml"))
	c.kubectl(t, "rollout", "status", "deployment/web", "--timeout=3m")
	ips := strings.Fields(c.kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"))
	if len(ips) != 2 {
		t.Fatalf("pods have %q", ips)
	}
	if out := c.run(t, "tc", "qdisc"); strings.Count(out, "rate 8Mbit burst 256Kb") != 2 {
		t.Errorf("the pods' bandwidth is not limited: %s", out)
	}
	stopPing := c.ping(t, ips[1])
	for _, version := range []string{"v0.1.1", "v0.1.0"} {
		c.kubectl(t, "-n", "kube-system", "set", "image", "daemonset/cnibox", "agent=ghcr.io/cnibox/cnibox:"+version)
		c.rollout(t)
	}
	stopPing()
	for _, file := range []string{"/etc/cni/net.d/10-cnibox.conflist", "/opt/cni/bin/cnibox", "/opt/cni/bin/chain"} {
		c.run(t, "rm", file)
		await.Until(t, func() bool { _, ok := c.try(t, "test", "-e", file); return ok }, func() string { return file + " does not come back" })
	}
	c.kubectl(t, "scale", "deployment/web", "--replicas=4")
	c.kubectl(t, "rollout", "status", "deployment/web", "--timeout=3m")

	c.kubectl(t, "apply", "-k", filepath.Join(examples, "kubernetes-uninstall"))
	await.Until(t, func() bool {
		out, _ := c.try(t, kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig, "-n", "kube-system", "logs", "daemonset/cnibox")
		return strings.Contains(out, "pods are still attached by cnibox: drain the node: 4")
	}, func() string { return "uninstall does not wait for the pods" })
	c.kubectl(t, "delete", "deployment", "web")
	c.rollout(t)
	if out := c.run(t, "find", "/etc/cni", "/opt/cni", "/run/cnibox", "/run/flannel", "!", "-type", "d"); out != "" {
		t.Errorf("files are left: %s", out)
	}
	if got := c.linkNames(t); !slices.Equal(got, before) {
		t.Errorf("links %q, before %q", got, before)
	}
	if out := c.run(t, "sh", "-c", rules); out != "" {
		t.Errorf("tables are left: %s", out)
	}
	if out := c.kubectl(t, "get", "node", clusterNode, "-o", "jsonpath={.metadata.annotations}"); strings.Contains(out, "flannel") {
		t.Errorf("annotations are left: %s", out)
	}
	c.kubectl(t, "delete", "-k", filepath.Join(examples, "kubernetes-uninstall"))
	c.within(t, "False", "get", "node", clusterNode, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
}

// ping sends packets from one pod of the deployment to an address, ten each second, until stop, which
// fails the test if one was lost.
func (c *cluster) ping(t *testing.T, ip string) (stop func()) {
	t.Helper()
	cmd := c.command(t.Context(), kubetest.Built("kubectl"), "--kubeconfig", c.kubeconfig, "exec", "deployment/web", "--", "ping", "-i", "0.1", ip)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		c.run(t, "pkill", "-INT", "-x", "ping")
		err := cmd.Wait()
		_, result, _ := strings.Cut(out.String(), "statistics")
		t.Log(result)
		if err != nil || !strings.Contains(result, " 0% packet loss") {
			t.Errorf("ping: %v: %s", err, out.String())
		}
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
