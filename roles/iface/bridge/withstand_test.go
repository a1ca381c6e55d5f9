package bridge_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// guarded is a network whose containers use nftables elements, their own and
// shared ones.
const guarded = `{"cniVersion":"1.1.0","name":"guarded","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
	"macspoofchk":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`

// small is a range of five addresses for containers.
const small = `{"cniVersion":"1.1.0","name":"small","type":"bridge","bridge":"br0","isGateway":true,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/29"}]]}}`

// pods is a node with numbered containers.
type pods struct {
	*rolestest.Env
	t      *testing.T
	conf   string
	spaces map[string]*netopstest.NS
	// results are the results of ADD by container ID.
	results map[string]string
}

// newPods creates a node. The node's cleanup removes what a test leaves.
func newPods(t *testing.T, conf string) *pods {
	t.Helper()
	p := &pods{
		Env: rolestest.NewEnv(t, all.Table()), t: t, conf: conf,
		spaces: map[string]*netopstest.NS{}, results: map[string]string{},
	}
	t.Cleanup(func() { p.Run(p.gc()) })
	return p
}

// call is a call for a container, whose namespace is created with its first
// call.
func (p *pods) call(verb, id string) rolestest.Call {
	p.t.Helper()
	if p.spaces[id] == nil {
		p.spaces[id] = netopstest.New(p.t)
	}
	c := rolestest.Call{Type: "bridge", Verb: verb, ID: id, Netns: p.spaces[id].Path(), IfName: "eth0", Conf: p.conf}
	if verb == "CHECK" {
		c.Conf = rolestest.WithKeys(p.t, p.conf, map[string]any{"prevResult": json.RawMessage(p.results[id])})
	}
	return c
}

// gc is GC with the list of the given containers.
func (p *pods) gc(valid ...string) rolestest.Call {
	list := make([]roles.AttachmentID, len(valid))
	for i, id := range valid {
		list[i] = roles.AttachmentID{ContainerID: id, IfName: "eth0"}
	}
	return rolestest.Call{Type: "bridge", Verb: "GC", Conf: rolestest.WithKeys(p.t, p.conf, map[string]any{"cni.dev/valid-attachments": list})}
}

// status is STATUS.
func (p *pods) status() rolestest.Call {
	return rolestest.Call{Type: "bridge", Verb: "STATUS", Conf: p.conf}
}

// add attaches a container.
func (p *pods) add(id string) {
	p.t.Helper()
	p.added(id, p.OK(p.call("ADD", id)).Stdout)
}

// added records a result. It fails the test if another container has the
// address.
func (p *pods) added(id, stdout string) {
	p.t.Helper()
	p.results[id] = stdout
	mine := addresses(p.t, stdout)
	for other, r := range p.results {
		for _, a := range addresses(p.t, r) {
			for _, m := range mine {
				if other != id && a == m {
					p.t.Fatalf("address %s is given to %q and %q", a, other, id)
				}
			}
		}
	}
}

func (p *pods) check(ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.OK(p.call("CHECK", id))
	}
}

func (p *pods) del(ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.OK(p.call("DEL", id))
		delete(p.results, id)
	}
}

// state is the node's state without the forwarding sysctls, which stay on.
func (p *pods) state() string { p.t.Helper(); return p.State([]string{"sysctl net/"}) }

// same fails the test if the state has changed.
func (p *pods) same(want, when string) {
	p.t.Helper()
	if have := p.state(); have != want {
		p.t.Fatalf("%s: state differs\nwant:\n%s\nhave:\n%s", when, want, have)
	}
}

// mentions fails the test if an error object lacks one of the texts.
func (p *pods) mentions(a rolestest.Answer, texts ...string) {
	p.t.Helper()
	for _, w := range texts {
		if !strings.Contains(a.Stdout, w) {
			p.t.Errorf("the error does not mention %q: %s", w, a.Stdout)
		}
	}
}

// storeFile is node.db's path.
func (p *pods) storeFile() string {
	p.t.Helper()
	found, err := filepath.Glob(filepath.Join(p.RunDir(), "*", "node.db"))
	if err != nil || len(found) != 1 {
		p.t.Fatalf("state files: %v, %v", found, err)
	}
	return found[0]
}

// addresses are the addresses of a result.
func addresses(t *testing.T, stdout string) []netip.Prefix {
	t.Helper()
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	var out []netip.Prefix
	for _, ip := range r.IPs {
		out = append(out, ip.Address)
	}
	return out
}

// TestBridgeUnlabelled: a process is killed between the requests that create
// the bridge and label it. The bridge must not stay for ever; the storm test
// found this.
func TestBridgeUnlabelled(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	p.add("a")
	must(t, netlink.LinkSetAlias(link(t, "br0"), ""))
	p.del("a")
	p.OK(p.gc())
	p.same(pristine, "after DEL and GC")

	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	p.add("a")
	p.del("a")
	p.OK(p.gc())
	must(t, netlink.LinkDel(link(t, "br0"))) // another program's bridge stays
}

// TestRulesetFlushed: the next ADD of any network restores the elements that
// the existing attachments need.
func TestRulesetFlushed(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	p.add("a")
	must(t, flushRuleset())
	p.Fail(p.call("CHECK", "a"), 0)
	p.add("b")
	p.check("a", "b")
	must(t, flushRuleset())
	p.del("b")
	p.add("c")
	p.check("a", "c")
	must(t, flushRuleset())
	p.del("a", "c")
	p.OK(p.gc())
	p.same(pristine, "after a flush, DEL and GC")
}

// TestReboot: with a new boot ID and an empty kernel state, a full pool is free
// again and the directory of the old boot is removed.
func TestReboot(t *testing.T) {
	p := newPods(t, small)
	ids := []string{"a", "b", "c", "d", "e"}
	for _, id := range ids {
		p.add(id)
	}
	old := filepath.Dir(p.storeFile())
	a := p.Fail(p.call("ADD", "full"), 11)
	p.mentions(a, "small", "5 addresses", "5 used", "10.1.0.2", `\"a\"`)
	p.mentions(p.Fail(p.status(), 50), "5 used")
	p.check(ids...)

	newBoot(t)
	for _, id := range ids {
		p.vanish(id)
	}
	must(t, netlink.LinkDel(link(t, "br0")))
	must(t, flushRuleset())
	p.OK(p.status())
	for _, id := range append(ids[1:], "f") {
		p.add(id)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the old boot's directory still exists: %v", err)
	}
	p.storeFile()
}

// newBoot changes the boot ID in this mount namespace, for all processes of the
// test.
func newBoot(t *testing.T) {
	t.Helper()
	const path = "/proc/sys/kernel/random/boot_id"
	id := filepath.Join(t.TempDir(), "boot_id")
	must(t, os.WriteFile(id, []byte("01234567-89ab-4cde-8f01-23456789abcd\n"), 0o600))
	bind(t, id, path)
}

// bind mounts a file over another file until the test ends.
func bind(t *testing.T, from, to string) {
	t.Helper()
	must(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestVanished: all containers of a full pool disappeared without DEL and without a
// reboot. The next ADD removes their records, and STATUS takes that into account.
func TestVanished(t *testing.T) {
	p := newPods(t, small)
	ids := []string{"a", "b", "c", "d", "e"}
	for _, id := range ids {
		p.add(id)
	}
	p.Fail(p.status(), 50)
	for _, id := range ids[:2] {
		p.vanish(id)
	}
	p.OK(p.status())
	p.add("f")
	p.add("g")
	p.check(append(ids[2:], "f", "g")...)
	p.Fail(p.call("ADD", "h"), 11)
	p.Fail(p.status(), 50)
}

// vanish removes a container without DEL.
func (p *pods) vanish(id string) {
	p.t.Helper()
	// The kernel deletes the interfaces with the namespace too, but later.
	must(p.t, netlink.LinkDel(link(p.t, hostLinkOf(p.t, p.results[id]))))
	p.spaces[id].Remove(p.t)
	delete(p.spaces, id)
	delete(p.results, id)
}

// hostLinkOf is the name of the host's end in a result.
func hostLinkOf(t *testing.T, stdout string) string {
	t.Helper()
	var r roles.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r.Interfaces[1].Name
}
