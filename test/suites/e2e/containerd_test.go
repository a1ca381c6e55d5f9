package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"
)

// pod is what test/peers/cri prints for a sandbox.
type pod struct {
	Name, ID string
	IPs      []string
	Netns    string
}

const containerdConf = `version = 2
root = "%[1]s/root"
state = "/run/containerd"
[debug]
  level = "warn"
[grpc]
  address = "%[2]s"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  # A container's OOM score may not be lowered without CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[3]s"
    conf_dir = "%[4]s"
`

const containerdSocket = "/run/containerd/containerd.sock"

// TestContainerd runs 30 pods as a kubelet does, 10 at a time, and removes them in the same way.
func TestContainerd(t *testing.T) {
	h := newHost(t)
	h.writeConf(t)
	before := h.linkNames(t)
	cripods := h.startContainerd(t)

	var pods []pod
	decode(t, h.run(t, cripods, "-socket", containerdSocket, "run", "-n", "30", "-parallel", "10", "-cgroup", h.cgroup), &pods)
	words := wantDistinct(t, pods, 30, netip.MustParsePrefix(subnet))
	if got := h.holdings(t); got.attachments != 30 || got.leases != 30 {
		t.Errorf("%d attachments and %d leases for 30 pods", got.attachments, got.leases)
	}
	url, word := h.serve(t)
	for i, p := range pods {
		inPod := func(args ...string) string {
			return h.run(t, append([]string{"nsenter", "--net=" + p.Netns, "busybox"}, args...)...)
		}
		inPod("ping", "-c1", "-W60", pods[(i+1)%len(pods)].IPs[0])
		inPod("ping", "-c1", "-W60", "127.0.0.1")
		if got := inPod("wget", "-qO-", url); got != word {
			t.Errorf("pod %q got %q from the host", p.Name, got)
		}
		h.run(t, "busybox", "ping", "-c1", "-W60", p.IPs[0])
	}

	var removed []string
	decode(t, h.run(t, cripods, "-socket", containerdSocket, "remove", "-parallel", "10"), &removed)
	if len(removed) != len(pods) {
		t.Errorf("%d pods were removed, want %d", len(removed), len(pods))
	}
	h.wantNothingLeft(t, before, words)
}

// startContainerd starts containerd with the image of a pod's sandbox, and builds its client.
func (h *host) startContainerd(t *testing.T) (cripods string) {
	t.Helper()
	cripods = buildCripods(t)
	conf := filepath.Join(h.dir, "containerd.toml")
	writeFile(t, conf, fmt.Sprintf(containerdConf, h.dir, containerdSocket, h.bin, h.conf))
	h.start(t, "containerd", "--config", conf)
	t.Log(h.run(t, cripods, "-socket", containerdSocket, "status"))
	h.run(t, "ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "native",
		writeImage(t, "localhost/pause:1", "/bin/sleep", "100000"))
	return cripods
}

// wantDistinct checks that every pod has an address of the IPv4 subnet and its own namespace; it returns the IDs and addresses.
func wantDistinct(t *testing.T, pods []pod, n int, subnet netip.Prefix) []string {
	t.Helper()
	if len(pods) != n {
		t.Fatalf("%d pods, want %d", len(pods), n)
	}
	var words []string
	owner := map[string]string{}
	for _, p := range pods {
		if len(p.IPs) == 0 {
			t.Fatalf("pod %q has no address", p.Name)
		}
		ip, err := netip.ParseAddr(p.IPs[0])
		if err != nil || !subnet.Contains(ip) || ip == subnet.Masked().Addr().Next() {
			t.Errorf("pod %q has address %q: not in %s", p.Name, p.IPs[0], subnet)
		}
		for _, own := range append([]string{p.Netns, p.ID}, p.IPs...) {
			if other, taken := owner[own]; taken {
				t.Errorf("pods %q and %q both have %q", other, p.Name, own)
			}
			owner[own] = p.Name
		}
		words = append(append(words, p.ID), p.IPs...)
	}
	return words
}

// buildCripods builds the CRI client, which is in a module of its own.
func buildCripods(t *testing.T) string {
	t.Helper()
	return buildProgram(t, "peers/cri")
}

// buildProgram builds the program in a directory below test, and returns its path.
func buildProgram(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(dir))
	cmd := exec.Command("go", "build", "-tags", "urfave_cli_no_docs", "-o", file, ".")
	cmd.Dir = filepath.Join(root(t), "test", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build test/%s: %v\n%s", dir, err, out)
	}
	return file
}
