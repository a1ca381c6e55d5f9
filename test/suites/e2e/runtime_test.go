package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// administrator is the configuration of podman by the host's administrator. It does not name a directory of plugins.
const administrator = `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[network]
network_backend = "cni"
network_config_dir = "%s"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
`

// ownSystem gives the host its own /etc and /opt. Debian's plugins in /usr/lib/cni stay.
func (h *host) ownSystem(t *testing.T) {
	t.Helper()
	h.run(t, "sh", "-ec", `mount -t tmpfs none /opt
mkdir /opt/upper /opt/work
mount -t overlay -o lowerdir=/etc,upperdir=/opt/upper,workdir=/opt/work none /etc
mount -t tmpfs none /opt`)
}

// TestInstallPodman: podman finds Debian's plugins before those in /opt/cni/bin, and those of cnibox after `install --runtime`.
func TestInstallPodman(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	h := newHost(t)
	h.writeConf(t)
	h.ownSystem(t)
	cnibox := filepath.Join(root(t), "bin/cnibox")
	writeFile(t, filepath.Join(h.dir, "own.conf"), fmt.Sprintf(administrator, h.conf))
	h.run(t, "sh", "-ec", "mkdir -p /etc/containers && cp "+h.dir+"/own.conf /etc/containers/containers.conf")
	p := podman{h: h}
	p.run(t, "load", "--quiet", "--input", writeImage(t, "localhost/box:1", "/bin/sh"))
	attachments := func() int {
		p.run(t, "run", "--detach", "--name", "one", "--network", network, "--cgroup-parent", h.cgroup, "localhost/box:1", "-c", "exec sleep 1000")
		defer p.run(t, "rm", "--force", "--time", "0", "one")
		return h.holdings(t).attachments
	}

	if out := h.run(t, "sh", "-c", cnibox+" install 2>&1"); !strings.Contains(out, "warning: podman does not use ") {
		t.Errorf("install does not warn about podman:\n%s", out)
	}
	if n := attachments(); n != 0 {
		t.Fatalf("%d attachments of cnibox without --runtime: this test needs Debian's containernetworking-plugins", n)
	}
	h.run(t, cnibox, "install", "--runtime", "podman")
	if n := attachments(); n != 1 {
		t.Errorf("%d attachments of cnibox after install --runtime, want 1", n)
	}
	h.run(t, cnibox, "uninstall")
	if n := attachments(); n != 0 {
		t.Errorf("%d attachments of cnibox after uninstall", n)
	}
}

// TestInstallContainerd: containerd reads what install prints as install does.
func TestInstallContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	newHost(t).installContainerd(t, `printf 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "/usr/lib/cni"\n'`,
		"io.containerd.grpc.v1.cri", `bin_dir = "/opt/cni/bin"`)
}

// installContainerd gives containerd a configuration with Debian's directory, which a command prints. It sets the key as install says
// for a table.
func (h *host) installContainerd(t *testing.T, config, table, want string) {
	t.Helper()
	h.ownSystem(t)
	cnibox := filepath.Join(root(t), "bin/cnibox")
	h.run(t, "sh", "-ec", `mkdir -p /etc/containerd; `+config+` >/etc/containerd/config.toml
printed=$(`+cnibox+` install --runtime containerd) && exit 1
line=$(echo "$printed" | grep -A1 "`+table+`" | tail -n1)
sed -i "s|^ *bin_dirs* = .*/usr/lib/cni.*|$line|" /etc/containerd/config.toml`)
	if out := h.run(t, cnibox, "install", "--runtime", "containerd"); !strings.Contains(out, "kept containerd") {
		t.Errorf("install after the printed change:\n%s", out)
	}
	if out := h.run(t, "containerd", "config", "dump"); !strings.Contains(out, want) {
		t.Errorf("containerd reads:\n%s", out)
	}
}
