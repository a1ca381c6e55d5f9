//go:build cluster

package e2e

import (
	"path/filepath"
	"testing"
)

// containerd2Conf is containerdConf and clusterContainerdConf in version 3. As in `containerd config default`, a table behind that of
// CNI has a bin_dir, too.
const containerd2Conf = `version = 3
root = "%[1]s/root"
state = "/run/containerd"
[debug]
  level = "warn"
[grpc]
  address = "%[2]s"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "%[3]s"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.image-verifier.v1.bindir"]
  bin_dir = "/opt/containerd/image-verifier/bin"
`

// useContainerd2 replaces Debian's containerd of a host by containerd 2.
func (h *host) useContainerd2(t *testing.T) {
	t.Helper()
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		h.run(t, "mount", "--bind", filepath.Join(root(t), "bin", "containerd", program), "/usr/bin/"+program)
	}
}

// TestInstallContainerd2: containerd 2 with the configuration that it prints itself reads what install prints as install does.
func TestInstallContainerd2(t *testing.T) {
	h := newHost(t)
	h.useContainerd2(t)
	h.installContainerd(t, "containerd config default | sed s,/opt/cni/bin,/usr/lib/cni,", "io.containerd.cri.v1.runtime", "bin_dirs = ['/opt/cni/bin', '/usr/lib/cni']")
}
