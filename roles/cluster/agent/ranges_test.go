package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestRanges: an agent of a pod network and one with -ranges-only lease blocks of one range. Pods get different
// addresses, also while an agent is stopped. A fault is in the agent's warnings.
func TestRanges(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	w.nodes[0].start()
	w.nodes[1].run(w.nodes[1].agent("-ranges-only"))
	seen := map[string]string{}
	add := func(n *node, id string) rolestest.Answer {
		return n.Run(rolestest.Call{Type: "whereabouts", Verb: "ADD", ID: id, Netns: n.ns.Path(), IfName: "net1", Conf: `{"cniVersion": "1.1.0", "name": "lan",
			"type": "macvlan", "ipam": {"type": "whereabouts", "range": "192.168.2.225/28", "kubernetes": {"kubeconfig": "/x"}}}`})
	}
	attach := func(n *node, id string) {
		t.Helper()
		var a rolestest.Answer
		w.within(func() bool { a = add(n, id); return a.Code == 0 }, func() string { return a.Stdout + n.log.String() })
		var r struct {
			IPs []struct{ Address netip.Prefix }
		}
		must(t, json.Unmarshal([]byte(a.Stdout), &r))
		text := r.IPs[0].Address.String()
		if seen[text] != "" || !strings.HasSuffix(text, "/28") {
			t.Errorf("%s has %s, and %s too", id, text, seen[text])
		}
		seen[text] = id
	}
	for i := range 3 {
		attach(w.nodes[0], fmt.Sprint("a", i))
		attach(w.nodes[1], fmt.Sprint("b", i))
	}
	if _, err := os.Stat(w.path(w.nodes[1].name)); err == nil {
		t.Error("the agent with -ranges-only published its node")
	}
	if _, err := w.nodes[1].verb("agent status", nil); err == nil || !strings.Contains(err.Error(), `no agent runs on this node: no process listens for "status" on `) {
		t.Errorf("the status of the agent with -ranges-only: %v", err)
	}
	w.nodes[1].kill()
	more := 0
	w.within(func() bool {
		more++
		return strings.Contains(add(w.nodes[1], fmt.Sprint("c", more)).Stdout, `"code": 11`)
	}, func() string { return "ADD does not fail" })
	w.nodes[1].run(w.nodes[1].agent("-ranges-only"))
	attach(w.nodes[1], "d")

	page := w.dir + "/ranges/192-168-2-0.json"
	must(t, os.WriteFile(page, []byte("x"), 0o600))
	var a rolestest.Answer
	w.within(func() bool { a = add(w.nodes[0], "e"); return strings.Contains(a.Stdout, "192-168-2-0") }, func() string { return a.Stdout })
	var text []byte
	w.within(func() bool {
		raw, err := w.nodes[0].verb("agent status", nil)
		must(t, err)
		text, err = json.Marshal(raw)
		must(t, err)
		return strings.Contains(string(text), "cluster-wide ranges: ")
	}, func() string { return "no warning: " + string(text) })
}

// TestPlannedRanges: the agent leases blocks for the networks in the runtime's directory, so that the first ADD succeeds without an
// agent. It leaves out other networks and files that are not valid. Its directory needs no configuration. A later agent does not
// make a registry in the mount point of a file system that is not mounted.
func TestPlannedRanges(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	must(t, os.MkdirAll(n.confDir(), 0o755))
	must(t, os.Remove(w.dir+"/config.json"))
	plugin := func(ipam string) string {
		return `"type": "macvlan", "ipam": {"type": "whereabouts", ` + ipam + `}`
	}
	for name, text := range map[string]string{
		"10-lan.conflist": `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "tuning"}, {` + plugin(`"range": "10.1.0.0/24"`) + `}]}`,
		"20-chain.conf":   `{"cniVersion": "1.0.0", "name": "v6", "type": "chain", "plugins": [{` + plugin(`"range": "fd00::/64"`) + `}]}`,
		"30-sticky.conf":  `{"cniVersion": "1.0.0", "name": "kept", ` + plugin(`"range": "10.3.0.0/24", "sticky": {}`) + `}`,
		"40-other.conf":   `{"cniVersion": "1.0.0", "name": "other", "type": "macvlan", "ipam": {"type": "host-local", "range": "10.4.0.0/24"}}`,
		"50-wrong.conf":   `{"cniVersion": "1.0.0", "name": "wrong", ` + plugin(`"range": "10.5.0.0"`) + `}`,
		"60-text.conf":    "x", "70-none.conf": `{` + plugin(`"range": "10.7.0.0/24"`) + `}`,
		"80-off.conf.bak": `{"cniVersion": "1.0.0", "name": "off", ` + plugin(`"range": "10.8.0.0/24"`) + `}`,
	} {
		must(t, os.WriteFile(n.confDir()+"/"+name, []byte(text), 0o600))
	}
	must(t, os.Mkdir(n.confDir()+"/90-dir.conf", 0o755))
	n.run(n.agent("-ranges-only", "-cni-conf-dir", n.confDir()))
	pages := map[string]bool{}
	w.within(func() bool {
		must(t, n.host().Store.View(t.Context(), func(tx *store.Tx) error {
			blocks, err := tx.RangeBlocks()
			for i := range blocks {
				pages[blocks[i].First.String()] = true
			}
			return err
		}))
		return len(pages) > 1
	}, func() string { return fmt.Sprint(pages, n.log) })
	if len(pages) != 2 || !pages["10.1.0.1"] {
		t.Errorf("blocks of %v", pages)
	}
	n.kill()
	for _, conf := range []string{`"name": "lan", ` + plugin(`"range": "10.1.0.0/24"`), `"name": "v6", ` + plugin(`"range": "fd00::/64"`)} {
		n.OK(rolestest.Call{Type: "whereabouts", Verb: "ADD", ID: "first", Netns: n.ns.Path(), IfName: "net1", Conf: `{"cniVersion": "1.1.0", ` + conf + `}`})
	}

	must(t, errors.Join(os.Rename(w.dir, w.dir+".unmounted"), os.Mkdir(w.dir, 0o755)))
	n.run(n.agent("-ranges-only", "-cni-conf-dir", n.confDir()))
	w.within(func() bool { return strings.Contains(n.log.String(), "mount it") }, func() string { return n.log.String() })
	if _, err := os.Lstat(w.dir + "/ranges"); err == nil {
		t.Error("the agent made a registry in a mount point")
	}
}
