package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
)

const podmanConf = `[containers]
# More than the machine's own limits cannot be given without CAP_SYS_RESOURCE.
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[network]
network_backend = "cni"
cni_plugin_dirs = ["%[1]s"]
network_config_dir = "%[2]s"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
`

// podman is a podman with its own storage and configuration.
type podman struct {
	h   *host
	env []string
}

func newPodman(t *testing.T, h *host) podman {
	t.Helper()
	conf := filepath.Join(h.dir, "containers.conf")
	writeFile(t, conf, fmt.Sprintf(podmanConf, h.bin, h.conf))
	return podman{h, []string{"CONTAINERS_CONF=" + conf}}
}

func (p podman) run(t *testing.T, args ...string) string {
	t.Helper()
	own := []string{
		"podman", "--root", filepath.Join(p.h.dir, "storage"), "--runroot", "/run/podman-root", "--tmpdir", "/run/podman-tmp",
		"--storage-driver", "vfs",
	}
	return runEnv(t, p.env, p.h, append(own, args...)...)
}

// container is the part of `podman inspect` that the tests use.
type container struct {
	ID              string
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress, Gateway string }
	}
}

// TestPodman runs two containers on a conflist of cnibox.
func TestPodman(t *testing.T) {
	h := newHost(t)
	h.writeConf(t)
	p := newPodman(t, h)
	before := h.linkNames(t)
	p.run(t, "load", "--quiet", "--input", writeImage(t, "localhost/box:1", "/bin/sh"))
	var words, ips []string
	for _, name := range []string{"one", "two"} {
		p.run(t, "run", "--detach", "--name", name, "--network", network, "--cap-add", "NET_RAW", "--cgroup-parent", h.cgroup, "localhost/box:1",
			"-c", "echo I am "+name+" >/tmp/word; exec httpd -f -p 80 -h /tmp")
		p.awaitWeb(t, name, 80)
		var c []container
		decode(t, p.run(t, "inspect", name), &c)
		got := c[0].NetworkSettings.Networks[network]
		if got.IPAddress == "" || got.Gateway != gateway {
			t.Fatalf("container %q has address %q and gateway %q", name, got.IPAddress, got.Gateway)
		}
		ips = append(ips, got.IPAddress)
		words = append(words, got.IPAddress, c[0].ID)
	}
	if ips[0] == ips[1] {
		t.Fatalf("both containers have address %s", ips[0])
	}
	if got := h.holdings(t); got.attachments != 2 || got.leases != 2 {
		t.Errorf("%d attachments and %d leases for 2 containers", got.attachments, got.leases)
	}
	url, word := h.serve(t)
	for i, name := range []string{"one", "two"} {
		p.run(t, "exec", name, "ping", "-c1", "-W60", ips[1-i])
		p.run(t, "exec", name, "ping", "-c1", "-W60", gateway)
		if got, want := p.run(t, "exec", name, "wget", "-qO-", "http://"+ips[1-i]+"/word"), "I am "+[]string{"two", "one"}[i]+"\n"; got != want {
			t.Errorf("container %q got %q from the other, want %q", name, got, want)
		}
		if got := p.run(t, "exec", name, "wget", "-qO-", url); got != word {
			t.Errorf("container %q got %q from the host", name, got)
		}
	}
	p.run(t, "rm", "--force", "--time", "0", "one", "two")
	h.wantNothingLeft(t, before, words)
}
