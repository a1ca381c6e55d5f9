//go:build cluster

package e2e

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNetworkPolicy runs Kubernetes' own tests of NetworkPolicy on a cluster whose agents enforce policies. Left out are the tests of
// the API alone, and of SCTP, which this kernel lacks.
func TestNetworkPolicy(t *testing.T) {
	c := newCluster(t, 3, 0)
	c.prepare(t)
	c.kubectl(t, "apply", "-f", filepath.Join(root(t), "examples", "kubernetes", "policy.yaml"))
	c.kubectl(t, "-n", "kube-system", "patch", "daemonset/cnibox", "--type=json", `-p=[{"op": "add", "path": "/spec/template/spec/containers/0/args/1", "value": "--policy"}]`)
	c.rollout(t)

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
