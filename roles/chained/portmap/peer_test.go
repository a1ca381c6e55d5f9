package portmap_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// referenceTown is a town with the reference plugins. It leaves no ruleset and
// no bridges.
func referenceTown(t *testing.T) *town {
	t.Helper()
	e := rolestest.NewEnv(t, all.Table())
	for _, typ := range []string{"bridge", "host-local", "portmap"} {
		path, err := filepath.Abs("../../../bin/peers/" + typ)
		must(t, err)
		if _, err := os.Stat(path); err != nil {
			t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
		}
		link := filepath.Join(e.PluginDir(), typ)
		must(t, os.Remove(link))
		must(t, os.Symlink(path, link))
	}
	t.Cleanup(func() {
		run(t, "nft", "flush", "ruleset")
		for _, name := range []string{"br0", "br1"} {
			if l, err := netlink.LinkByName(name); err == nil {
				must(t, netlink.LinkDel(l))
			}
		}
	})
	w := newTownOf(t, e)
	w.chain = strings.Replace(w.chain, `"type":"host-local"`, `"type":"host-local","dataDir":"`+t.TempDir()+`"`, 1)
	return w
}

// reached is the reply over TCP to a host outside, or "" if there is none.
func (w *town) reached(source, to string) string {
	w.t.Helper()
	c, err := w.dial(w.outside, "tcp", source, to)
	if err != nil {
		return ""
	}
	answer, err := ask(c)
	if err != nil {
		return ""
	}
	return answer
}

// TestReferenceDifferences makes the same calls to our plugin and to the
// reference's.
func TestReferenceDifferences(t *testing.T) {
	const nft = `"backend":"nftables"`
	for _, v := range []struct {
		name         string
		play         func(*town) string
		ours, theirs string
	}{
		{"DEL of one network leaves the other's ports", func(w *town) string {
			a := w.run("a").publish(conf(`{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`, nft))
			second := *a
			second.join("other", strings.NewReplacer("br0", "br1", "10.1.0", "10.2.0", "fd00:1", "fd00:2").Replace(w.chain), "eth1")
			c := second.plugin("ADD", strings.Replace(conf(`{"hostPort":8081,"containerPort":80,"protocol":"tcp"}`, nft), "ports", "other", 1))
			c.IfName = "eth1"
			w.OK(c)
			c.Verb = "DEL"
			w.OK(c)
			return w.reached("192.0.2.2", "192.0.2.1:8080")
		}, "a 192.0.2.2", ""},
		{"conditions rule who has them", func(w *town) string {
			w.run("a").publish(conf(`{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`, nft, `"conditionsV4":["ip saddr != 192.0.2.3"]`))
			w.run("b").publish(conf(`{"hostPort":8081,"containerPort":80,"protocol":"tcp"}`, nft, `"conditionsV4":["ip saddr != 192.0.2.9"]`))
			return w.reached("192.0.2.3", "192.0.2.1:8080")
		}, "", "a 192.0.2.3"},
		{"a port is one container's", func(w *town) string {
			ports := conf(`{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`, nft)
			w.run("a").publish(ports)
			b := w.run("b")
			if a := w.Run(b.plugin("ADD", ports)); a.Code != 0 {
				return "refused"
			}
			return "taken"
		}, "refused", "taken"},
	} {
		t.Run(v.name, func(t *testing.T) {
			for _, side := range []struct {
				name, want string
				town       func(*testing.T) *town
			}{{"cnibox", v.ours, newTown}, {"reference", v.theirs, referenceTown}} {
				t.Run(side.name, func(t *testing.T) {
					if have := v.play(side.town(t)); have != side.want {
						t.Errorf("%q, want %q", have, side.want)
					}
				})
			}
		})
	}
}
