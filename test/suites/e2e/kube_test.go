//go:build cluster

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// cluster is a Kubernetes whose nodes are hosts on one bridge. The first node also runs the control plane.
type cluster struct {
	*node
	nodes      []*node
	files      string    // the control plane's directory
	kubeconfig string    // the administrator's
	last       time.Time // when the last step ended
}

// node is a machine of a cluster. Its disk outlives its host, which reboot replaces.
type node struct {
	*host
	containerd2 bool // instead of Debian's 1.6
	name, ip    string
	wire        *host // has the bridge
	disk        string
	kubeconfig  string // the kubelet's
}

// apiServer is node-a's address. The API server's Service has the first address of the range.
const (
	apiServer    = "192.0.2.11"
	serviceRange = "10.96.0.0/16"
	clusterDNS   = "10.96.0.10"
	podRange     = "10.244.0.0/16"
)

// nodeScript gives a host the disk $1, its own boot ID and the address $2, and no plugins. The machine's podman, which doctor
// examines too, searches plugins where containerd does.
const nodeScript = `set -e
mkdir -p /etc/cni /opt/cni $1/lib $1/etc $1/opt $1/containerd
mount --bind $1/lib /var/lib
mount --bind $1/containerd /etc/containerd
mount -t tmpfs tmpfs /etc/containers
printf '[network]\ncni_plugin_dirs = ["/opt/cni/bin"]\n' >/etc/containers/containers.conf
mount --bind $1/etc /etc/cni
mount --bind $1/opt /opt/cni
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id ` + bootID + `
ip addr add $2/24 dev eth0
ip link set eth0 up
ip route add default via 192.0.2.1
sysctl -qw net.ipv4.ip_forward=0
`

const bootID = "/proc/sys/kernel/random/boot_id"

// clusterContainerdConf is added to containerdConf. The file is a container's specification with bootHook.
const clusterContainerdConf = `
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "%s"
`

// bootHook gives a container, which has a /proc of its own, the boot ID of its node. Its directory is the container's root.
const bootHook = `{"createContainer": [{"path": "/bin/mount", "args": ["mount", "--bind", "` + bootID + `", ".` + bootID + `"]}]}`

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
clusterDNS: [` + clusterDNS + `]
clusterDomain: cluster.local
resolvConf: ""
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
`

// kubeconfigOf writes a kubeconfig with a token.
func kubeconfigOf(t *testing.T, dir, token string) string {
	t.Helper()
	path := filepath.Join(dir, token+".kubeconfig")
	writeFile(t, path, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://`+apiServer+`:6443", insecure-skip-tls-verify: true}}]
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
func (h *host) try(t *testing.T, args ...string) (string, bool) {
	out, err := h.command(t.Context(), args...).CombinedOutput()
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

// newCluster starts etcd, the control plane and the nodes node-a, node-b and so on. The last nodes run containerd 2.
func newCluster(t *testing.T, containerd1, containerd2 int) *cluster {
	t.Helper()
	dir := t.TempDir()
	wire := newHost(t)
	wire.run(t, "sh", "-ec", "ip link add br0 type bridge; ip addr add 192.0.2.1/24 dev br0; ip link set br0 up")
	c := &cluster{last: time.Now(), files: dir, kubeconfig: kubeconfigOf(t, dir, "admin")}
	tokens := "admin,admin,1,system:masters\nproxy,system:kube-proxy,2\n"
	for i := range containerd1 + containerd2 {
		n := &node{containerd2: i >= containerd1, name: fmt.Sprintf("node-%c", 'a'+i), ip: fmt.Sprintf("192.0.2.%d", 11+i), wire: wire}
		n.disk = filepath.Join(dir, n.name)
		n.kubeconfig = kubeconfigOf(t, dir, n.name)
		n.connect(t)
		tokens += fmt.Sprintf("%s,system:node:%[1]s,%d,system:nodes\n", n.name, 3+i)
		c.nodes = append(c.nodes, n)
	}
	c.node = c.nodes[0]
	writeFile(t, c.file("tokens.csv"), tokens)
	writeFile(t, c.file("sa.key"), serviceAccountKey(t))
	c.startControlPlane(t)
	for _, n := range c.nodes {
		n.startRuntime(t)
		n.load(t, writeImage(t, "localhost/pause:1", "/bin/sleep", "100000"))
		n.load(t, writeImage(t, "localhost/web:1", "/bin/busybox", "httpd", "-f", "-p", "80"))
		n.startKube(t)
	}
	return c
}

func (c *cluster) file(name string) string { return filepath.Join(c.files, name) }

func (c *cluster) startControlPlane(t *testing.T) {
	t.Helper()
	c.start(t, kubetest.Built("etcd"), "--data-dir", c.file("etcd"), "--log-level", "error", "--unsafe-no-fsync")
	c.startAPI(t)
	c.start(t, kubetest.Built("kube-controller-manager"), "--kubeconfig="+c.kubeconfig, "--service-account-private-key-file="+c.file("sa.key"), "--leader-elect=false",
		"--root-ca-file="+c.file("pki/apiserver.crt"), "--allocate-node-cidrs", "--cluster-cidr="+podRange, "--cert-dir="+c.file("kcm"))
	c.start(t, kubetest.Built("kube-scheduler"), "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--cert-dir="+c.file("scheduler"))
}

// startAPI starts the API server, again after it was killed.
func (c *cluster) startAPI(t *testing.T) {
	t.Helper()
	c.start(t, kubetest.Built("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--service-account-key-file="+c.file("sa.key"),
		"--service-account-signing-key-file="+c.file("sa.key"), "--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file="+c.file("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--cert-dir="+c.file("pki"), "--advertise-address="+apiServer, "--service-cluster-ip-range="+serviceRange,
		"--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP", "--allow-privileged")
	c.within(t, "ok", "get", "--raw", "/readyz")
}

// connect makes the node's host and connects it to the bridge.
func (n *node) connect(t *testing.T) {
	t.Helper()
	n.host = newHost(t)
	n.onWire(t, "link", "add", n.name, "up", "master", "br0", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(n.pid))
	n.run(t, "sh", "-c", nodeScript, "sh", n.disk, n.ip)
	if n.containerd2 {
		n.useContainerd2(t)
	}
}

// onWire runs ip in the network namespace of the bridge only, so that it knows the hosts by their process IDs.
func (n *node) onWire(t *testing.T, args ...string) {
	t.Helper()
	enter := []string{fmt.Sprintf("--net=/proc/%d/ns/net", n.wire.pid), "ip"}
	if out, err := exec.CommandContext(t.Context(), "nsenter", append(enter, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %q: %v: %s", args, err, out)
	}
}

// startRuntime starts containerd.
func (n *node) startRuntime(t *testing.T) {
	t.Helper()
	conf, base := filepath.Join(n.disk, "containerd", "config.toml"), filepath.Join(n.disk, "base.json")
	var spec map[string]any
	decode(t, n.run(t, "ctr", "oci", "spec"), &spec)
	spec["hooks"] = json.RawMessage(bootHook)
	writeFile(t, base, string(jsonOf(t, spec)))
	if n.containerd2 {
		writeFile(t, conf, fmt.Sprintf(containerd2Conf, n.disk, containerdSocket, base))
	} else {
		writeFile(t, conf, fmt.Sprintf(strings.Replace(containerdConf, `"native"`, `"overlayfs"`, 1), n.disk, containerdSocket, "/opt/cni/bin", "/etc/cni/net.d")+fmt.Sprintf(clusterContainerdConf, base))
	}
	n.keep(t, "containerd")
	await.Until(t, func() bool { _, ok := n.try(t, "ctr", "--address", containerdSocket, "version"); return ok }, func() string { return "containerd does not answer" })
}

// startKube starts kubelet and kube-proxy.
func (n *node) startKube(t *testing.T) {
	t.Helper()
	conf := filepath.Join(n.dir, "kubelet.yaml")
	writeFile(t, conf, fmt.Sprintf(kubeletConf, n.cgroup, containerdSocket))
	n.keep(t, kubetest.Built("kubelet"), "--config="+conf, "--kubeconfig="+n.kubeconfig, "--hostname-override="+n.name, "--node-ip="+n.ip,
		"--root-dir=/var/lib/kubelet", "--cert-dir="+filepath.Join(n.dir, "kubelet"))
	n.start(t, kubetest.Built("kube-proxy"), "--kubeconfig="+kubeconfigOf(t, n.dir, "proxy"), "--hostname-override="+n.name, "--proxy-mode=nftables", "--cluster-cidr="+podRange,
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
}

// keep starts a program, and again whenever it ends, as systemd does.
func (n *node) keep(t *testing.T, args ...string) {
	t.Helper()
	n.startAs(t, args[0], append([]string{"sh", "-c", `while :; do "$@"; sleep 0.2; done`, "sh"}, args...)...)
}

// load imports an image.
func (n *node) load(t *testing.T, file string) {
	t.Helper()
	n.run(t, "ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", file)
}

// load imports an image on each node.
func (c *cluster) load(t *testing.T, file string) {
	t.Helper()
	for _, n := range c.nodes {
		n.load(t, file)
	}
}

// kill ends a program of the node.
func (n *node) kill(t *testing.T, program string) {
	t.Helper()
	n.run(t, "pkill", "-KILL", "-x", program)
}

// reboot ends all that runs on the node. Only its disk remains: the new host has an empty /run, no network and another boot ID.
func (n *node) reboot(t *testing.T) {
	t.Helper()
	n.onWire(t, "link", "delete", n.name)
	n.stop()
	n.connect(t)
	n.startRuntime(t)
	n.startKube(t)
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
