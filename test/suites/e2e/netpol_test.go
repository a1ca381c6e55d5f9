//go:build cluster

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/kubetest"
)

// TestNetworkPolicy runs Kubernetes' own tests of NetworkPolicy on a cluster whose agents enforce policies. Left out are the tests of
// the API alone, and of SCTP, which this kernel lacks.
func TestNetworkPolicy(t *testing.T) {
	c := newCluster(t, 3, 0)
	c.prepare(t)
	c.enforce(t)

	const netpol = `\[sig-network\] Netpol `
	var names []string
	for _, one := range c.e2e(t, []string{"--ginkgo.dry-run", "--ginkgo.focus=" + netpol, `--ginkgo.skip=SCTPConnectivity|Netpol API`}) {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	t.Logf("%d tests", len(names))
	parts := make([][]string, 3)
	for i, name := range names {
		name, _, _ = strings.Cut(strings.TrimPrefix(name, "[It] "), " [Feature")
		parts[i%3] = append(parts[i%3], "--ginkgo.focus="+regexp.QuoteMeta(name))
	}
	for _, one := range c.e2e(t, parts...) {
		if one.Status != "passed" {
			t.Errorf("%s: %s: %+v", one.Name, one.Status, one.Failure)
		} else {
			t.Logf("%s: %.0f s", one.Name, one.Time)
		}
	}
	c.sound(t)
}

// enforce makes the agents enforce policies.
func (c *cluster) enforce(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-f", filepath.Join(root(t), "examples", "kubernetes", "policy.yaml"))
	c.kubectl(t, "-n", "kube-system", "patch", "daemonset/cnibox", "--type=json", `-p=[{"op": "add", "path": "/spec/template/spec/containers/0/args/1", "value": "--policy"}]`)
	c.rollout(t)
}

// TestClusterNetworkPolicy runs the conformance tests of network-policy-api on a cluster, and writes their report into bin/conformance.
func TestClusterNetworkPolicy(t *testing.T) {
	c := newCluster(t, 3, 0)
	c.load(t, image(t, filepath.Join(root(t), "bin", "cnibox"), "v0.1.0"))
	programs := append(dynamic(t, "dash"), entry{name: "bin/bash", link: "dash"}, entry{name: "agnhost", perm: 0o755, data: content(t, kubetest.Built("agnhost"))})
	c.load(t, writeImageWith(t, []string{e2eImages + "agnhost:2.45"}, programs, []string{"/agnhost"}, []string{"pause"}))
	c.install(t)
	module := filepath.Join(root(t), "test/peers/policy")
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api")
	list.Dir = module
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(dir)), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	c.enforce(t)
	out, err := c.command(t.Context(), kubetest.Built("policy.test"), "-test.v", "-kubeconfig", c.kubeconfig, "-of", "v0.1.0",
		"-report", filepath.Join(root(t), "bin", "conformance", "cnibox.yaml")).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	c.sound(t)
}
