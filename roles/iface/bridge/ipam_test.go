package bridge_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestIPAMNotInstalled: the IPAM type is misspelt, or its plugin was removed.
// If ADD failed for this reason, DEL succeeds. An address that was assigned
// before is kept.
func TestIPAMNotInstalled(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	misspelt := p.call("ADD", "a")
	misspelt.Conf = rolestest.WithKeys(t, guarded, map[string]any{"ipam": map[string]any{"type": "hostlocal"}})
	p.Fail(misspelt, 107)
	misspelt.Verb = "DEL"
	p.OK(misspelt)
	p.same(pristine, "after DEL")

	p.add("a")
	file := filepath.Join(p.PluginDir(), "host-local")
	must(t, os.Rename(file, file+".away"))
	p.Fail(p.call("DEL", "a"), 107)
	lost := p.call("DEL", "b") // known only from the runtime's cache
	lost.Conf = rolestest.WithKeys(t, guarded, map[string]any{"prevResult": map[string]any{
		"cniVersion": "1.1.0", "ips": []map[string]string{{"address": "10.1.0.9/24"}},
	}})
	p.Fail(lost, 107)
	must(t, os.Rename(file+".away", file))
	p.OK(lost)
	p.del("a")
	p.OK(p.gc())
	p.same(pristine, "after DEL of both")
}
