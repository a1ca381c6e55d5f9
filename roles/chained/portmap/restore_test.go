package portmap_test

import (
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestFlushedRuleset: after `nft flush ruleset` ADD, GC and STATUS restore the ports of
// all containers, also a call that needs no rule itself.
func TestFlushedRuleset(t *testing.T) {
	w := newTown(t)
	w.chain = bridge
	a := w.run("a").publish(conf(`{"hostPort":8080,"containerPort":80},{"hostPort":79,"containerPort":79,"range":3}`))
	for _, v := range []struct {
		name string
		call func()
	}{
		{"STATUS", func() {
			w.OK(rolestest.Call{Type: "bridge", Verb: "STATUS", Conf: rolestest.WithKeys(t, bridge, map[string]any{"name": "ports", "cniVersion": "1.1.0"})})
		}},
		{"ADD without ports", func() { w.attached("b") }},
	} {
		must(t, netopstest.FlushRuleset())
		w.wants("", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
		v.call()
		for _, port := range []int{8080, 80} {
			w.wants("a 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", port)
		}
		if t.Failed() {
			t.Fatalf("after %s", v.name)
		}
	}
	a.withdraw()
	must(t, netopstest.FlushRuleset())
	w.OK(rolestest.Call{Type: "bridge", Verb: "STATUS", Conf: rolestest.WithKeys(t, bridge, map[string]any{"name": "ports", "cniVersion": "1.1.0"})})
	w.wants("", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
}
