package firewall_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// reference calls the reference plugin, with the given PATH unless that is
// empty.
func (w *world) reference(c rolestest.Call, path string) error {
	w.t.Helper()
	file, err := filepath.Abs("../../../bin/peers/firewall")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		w.t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	cmd := exec.Command(file)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Netns, "CNI_IFNAME="+c.IfName, "CNI_PATH=/")
	if path != "" {
		cmd.Env = append(cmd.Env, "PATH="+path)
	}
	cmd.Stdin = strings.NewReader(rolestest.WithKeys(w.t, c.Conf, map[string]any{"cniVersion": "1.0.0"}))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// verb is the same call with another verb.
func verb(c rolestest.Call, v string) rolestest.Call {
	c.Verb = v
	return c
}

// TestReference shows the reference plugin's behaviour in cases in which ours is better.
// Each subtest names the test of ours.
func TestReference(t *testing.T) {
	rules := func(t *testing.T) string { t.Helper(); return run(t, "iptables-nft -S") + run(t, "ip6tables-nft -S") }
	t.Run("late DEL", func(t *testing.T) { // TestLateDel
		w := newWorld(t)
		t.Cleanup(func() { deleteFilters(t) })
		a := w.attached("a", 1, `{"backend":"iptables"}`)
		next := a.firewall // another container that has the address now
		next.ID = "next"
		for _, c := range []rolestest.Call{a.firewall, next, verb(a.firewall, "DEL")} {
			if err := w.reference(c, ""); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(rules(t), "10.1.0.2/32") {
			t.Error("the next owner's rules still exist")
		}
	})
	t.Run("CHECK", func(t *testing.T) { // TestOtherFirewalls
		w := newWorld(t)
		t.Cleanup(func() { deleteFilters(t) })
		a := w.attached("a", 1, `{"backend":"iptables"}`)
		before := rules(t)
		if err := w.reference(verb(a.firewall, "CHECK"), ""); err == nil {
			t.Error("CHECK without ADD succeeds")
		}
		if rules(t) == before {
			t.Error("CHECK changes nothing")
		}
	})
	t.Run("IPv4 only", func(t *testing.T) { // TestWithoutPrograms
		w := newWorld(t)
		t.Cleanup(func() { deleteFilters(t) })
		a := w.attached("a", 1, `{"backend":"iptables"}`)
		dir := t.TempDir()
		if err := os.Symlink("/usr/sbin/iptables", filepath.Join(dir, "iptables")); err != nil {
			t.Fatal(err)
		}
		if err := w.reference(a.firewall, dir); err == nil || !strings.Contains(err.Error(), "ip6tables") {
			t.Errorf("without ip6tables: %v", err)
		}
	})
	t.Run("isolated", func(t *testing.T) { // TestPolicyIsolated
		bridgeFilter(t, false)
		w := newWorld(t)
		t.Cleanup(func() { deleteFilters(t) })
		for _, id := range []string{"a", "b"} {
			p := w.attached(id, 1, `{"backend":"iptables","ingressPolicy":"isolated"}`)
			if err := w.reference(p.firewall, ""); err != nil {
				t.Fatal(err)
			}
		}
		w.reach("a", "b", true) // without br_netfilter
		w.reach("outside", "a", true)
	})
}

// TestLateDel: a DEL that comes after the address was assigned to another
// container leaves that container's rules, with every backend.
func TestLateDel(t *testing.T) {
	w := newWorld(t)
	docker(t)
	conf := `{"backend":"iptables","ingressPolicy":"same-bridge"}`
	a := w.attached("a", 1, conf)
	a.firewall.Conf = strings.ReplaceAll(a.firewall.Conf, `/24`, `/32`) // its own rules, not shared ones
	next := a.firewall
	next.ID = "next"
	w.OK(a.firewall)
	w.OK(next)
	w.OK(verb(a.firewall, "DEL"))
	w.OK(verb(a.firewall, "DEL"))
	w.OK(verb(next, "CHECK"))
	w.reach4("a", "outside", true)
	w.OK(verb(next, "DEL"))
	w.OK(verb(next, "DEL"))
	if have := run(t, "iptables-nft -S"); strings.Contains(have, "10.1.0.2") {
		t.Errorf("left:\n%s", have)
	}
}

// TestWithoutPrograms: iptables' tables are written although PATH is empty.
func TestWithoutPrograms(t *testing.T) {
	w := newWorld(t)
	docker(t)
	w.Extra = []string{"PATH=/nowhere"}
	w.attach("a", 1, `{}`)
	w.reach("a", "outside", true)
	legacyDrop(t) // only a program can do this
	const program = "/usr/sbin/xtables-legacy-multi"
	if err := unix.Mount("/dev/null", program, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(program, unix.MNT_DETACH) })
	b := w.attached("b", 2, `{}`)
	if f := w.Fail(b.firewall, 0); !strings.Contains(f.Stdout, "iptables-legacy: not supported") {
		t.Errorf("ADD: %s", f.Stdout)
	}
	w.OK(check(w.attach("c", 2, `{"backend":"nftables"}`)))
}

// TestNothingWanted: if no firewall drops forwarded packets, ADD records nothing. A DEL
// without a record keeps the rules of other attachments.
func TestNothingWanted(t *testing.T) {
	w := newWorld(t)
	a := w.attach("a", 1, `{}`)
	if have := w.State(nil); !strings.Contains(have, `["bridge"]`) || strings.Contains(have, `"firewall"`) {
		t.Errorf("recorded:\n%s", have)
	}
	w.OK(check(a))
	docker(t)
	b := w.attach("b", 1, `{}`)
	if have := w.State(nil); strings.Count(have, `"firewall"`) != 1 {
		t.Errorf("recorded with docker's rules:\n%s", have)
	}
	w.OK(verb(a.firewall, "DEL"))
	w.OK(verb(a.firewall, "DEL"))
	w.OK(check(b))
	w.reach4("b", "outside", true)
	w.OK(verb(b.firewall, "DEL"))
	if have := w.State(nil); strings.Contains(have, `"firewall"`) {
		t.Errorf("left:\n%s", have)
	}
}

// TestInherit: DEL removes the reference plugin's rules of a container that it
// attached, but not those of an address that another attachment has.
func TestInherit(t *testing.T) {
	w := newWorld(t)
	a := w.attached("a", 1, `{"backend":"iptables"}`)
	b := w.attached("b", 1, `{"backend":"iptables"}`)
	for _, p := range []*peer{a, b} {
		if err := w.reference(p.firewall, ""); err != nil {
			t.Fatal(err)
		}
	}
	other := a.firewall // its result has b's address
	other.ID, other.Conf = "other", b.firewall.Conf
	w.OK(verb(other, "DEL"))
	w.OK(verb(a.firewall, "DEL"))
	have := run(t, "iptables-nft -S") + run(t, "ip6tables-nft -S")
	if strings.Contains(have, a.addrs[0].String()+"/") || strings.Contains(have, a.addrs[1].String()+"/") {
		t.Errorf("a's rules are left:\n%s", have)
	}
	if strings.Count(have, b.addrs[0].String()+"/32") != 2 || strings.Count(have, b.addrs[1].String()+"/128") != 2 {
		t.Errorf("b's rules are gone:\n%s", have)
	}
	deleteFilters(t)
}
