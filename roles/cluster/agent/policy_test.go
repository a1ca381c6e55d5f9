package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// allIsolated is a policy that isolates all pods.
const allIsolated = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all}, spec: {podSelector: {}}}`

// TestPolicyFlagLost: an agent that lost the flag -policy goes on with the policies, and says so. If it cannot read them, it is not ready and
// ADD is refused. 'policy off' ends that, and is refused while the flag is given. A new agent enforces nothing then.
func TestPolicyFlagLost(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	dir := filepath.Join(n.Dir(), "policy.d")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(allIsolated), 0o600))
	off := func() (err error) {
		n.ns.Do(t, func() error {
			err = control.Off(t.Context(), n.host())
			return nil
		})
		return err
	}
	selects := func(p *pod) bool {
		return strings.Contains(n.exec("nft", "list", "ruleset"), p.addr4.String()+" ")
	}
	n.start("-policy", "-policy-dir="+dir)
	n.attach()
	if err := off(); err == nil || !strings.Contains(err.Error(), "runs with -policy") {
		t.Errorf("policy off beside the flag: %v", err)
	}
	n.stop()
	n.start()
	n.until("a warning", func(a answer) bool { return strings.Contains(strings.Join(a.Warnings, " "), "cnibox policy off") })
	if p := n.attach(); !selects(p) {
		t.Error("without the flag, no policy selects a pod")
	}
	n.stop()

	must(t, os.Rename(dir, dir+".old"))
	n.launch()
	await.Until(t, func() bool {
		_, err := n.verb("agent status", nil)
		return err == nil && n.exit != nil && strings.Contains(n.exit.Error(), "cnibox policy off")
	}, func() string { return "the agent is ready without its policies" })
	ns := netopstest.New(t)
	add := n.Cmd(rolestest.Call{
		Type: "bridge", Verb: "ADD", ID: "refused", Netns: ns.Path(), IfName: "eth0",
		Conf: `{"cniVersion":"1.0.0","name":"other","type":"bridge","bridge":"br9","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`,
	})
	n.ns.Do(t, func() error {
		if out, err := add.Output(); err == nil || !strings.Contains(string(out), `"code": 11`) || !strings.Contains(string(out), "cnibox policy off") {
			t.Errorf("ADD without policies: %v: %s", err, out)
		}
		return nil
	})
	must(t, off())
	n.until("ready", func(a answer) bool { return a.Ready })
	if left := n.exec("nft", "list", "tables"); strings.Contains(left, "cnibox_policy") {
		t.Errorf("policy off left %s", left)
	}
	n.stop()
	n.start()
	if p := n.attach(); selects(p) {
		t.Error("after policy off, a policy selects a pod")
	}
}
