package macvlan_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// lostNode is a node whose runtime caches results. The host has no interface
// that shows its attachments.
type lostNode struct {
	*rolestest.Env
	t        *testing.T
	spaces   map[string]*netopstest.NS
	results  map[string]string
	pristine string
}

func newLostNode(t *testing.T) *lostNode {
	t.Helper()
	netopstest.Master(t, "lan0")
	n := &lostNode{Env: rolestest.NewEnv(t, all.Table()), t: t, spaces: map[string]*netopstest.NS{}, results: map[string]string{}}
	n.pristine = n.State(nil)
	t.Cleanup(func() { n.Run(n.gc()) })
	return n
}

func (n *lostNode) call(verb, id string) rolestest.Call {
	n.t.Helper()
	if n.spaces[id] == nil {
		n.spaces[id] = netopstest.New(n.t)
	}
	c := rolestest.Call{Type: "macvlan", Verb: verb, ID: id, Netns: n.spaces[id].Path(), IfName: "eth0", Conf: rolestest.WithKeys(n.t, layer3, map[string]any{"cniVersion": "1.1.0"})}
	if verb == "CHECK" {
		c.Conf = rolestest.WithKeys(n.t, c.Conf, map[string]any{"prevResult": json.RawMessage(n.results[id])})
	}
	return c
}

func (n *lostNode) gc(valid ...string) rolestest.Call {
	list := make([]roles.AttachmentID, len(valid))
	for i, id := range valid {
		list[i] = roles.AttachmentID{ContainerID: id, IfName: "eth0"}
	}
	return rolestest.Call{Type: "macvlan", Verb: "GC", Conf: rolestest.WithKeys(n.t, layer3, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": list})}
}

// add attaches a container and returns its IPv4 address.
func (n *lostNode) add(id string) string {
	n.t.Helper()
	c := n.call("ADD", id)
	n.results[id] = n.OK(c).Stdout
	n.Cache(c, n.results[id])
	return firstAddress(n.t, n.results[id])
}

// del runs DEL without a namespace.
func (n *lostNode) del(id string) {
	n.t.Helper()
	c := n.call("DEL", id)
	c.Netns = ""
	n.OK(c)
	must(n.t, os.Remove(filepath.Join(n.CacheDir(), "l3-"+id+"-eth0")))
}

// bare fails the test if a container has an interface besides lo.
func (n *lostNode) bare(id, when string) {
	n.t.Helper()
	n.spaces[id].Do(n.t, func() error {
		links, err := netlink.LinkList()
		if err == nil && len(links) != 1 {
			n.t.Errorf("%s: container %s has %d interfaces besides lo", when, id, len(links)-1)
		}
		return err
	})
}

// inside changes a container's interface.
func (n *lostNode) inside(id string, change func(netlink.Link) error) {
	n.t.Helper()
	n.spaces[id].Do(n.t, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return change(l)
	})
}

func firstAddress(t *testing.T, result string) string {
	t.Helper()
	var r struct{ IPs []struct{ Address string } }
	must(t, json.Unmarshal([]byte(result), &r))
	return r.IPs[0].Address
}

// TestStateLost: /run/cnibox is deleted while containers run. Their interfaces can be
// found only through a runtime's cache. They stay attached and keep their addresses. DEL
// without a namespace and GC find them.
func TestStateLost(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(n *lostNode, taken map[string]bool)
	}{
		{"ADD first", func(n *lostNode, taken map[string]bool) {
			if a := n.add("new"); taken[a] {
				n.t.Errorf("%s is assigned twice", a)
			}
			n.Fail(n.call("ADD", "a"), 105)
			n.OK(n.call("CHECK", "a"))
			n.del("a")
			n.bare("a", "after DEL")
			n.OK(n.call("CHECK", "b"))
		}},
		{"DEL first", func(n *lostNode, _ map[string]bool) {
			n.del("a")
			n.bare("a", "after DEL")
			n.OK(n.call("CHECK", "b"))
		}},
		{"GC that lists one first", func(n *lostNode, _ map[string]bool) {
			n.OK(n.gc("b"))
			n.bare("a", "after GC")
			n.OK(n.call("CHECK", "b"))
		}},
		{"renamed", func(n *lostNode, _ map[string]bool) {
			n.inside("a", func(l netlink.Link) error {
				if err := netlink.LinkSetDown(l); err != nil {
					return err
				}
				return netlink.LinkSetName(l, "renamed")
			})
			n.del("a")
			n.bare("a", "after DEL")
		}},
		{"namespace gone", func(n *lostNode, taken map[string]bool) {
			n.spaces["a"].Remove(n.t)
			if a := n.add("new"); !taken[a] || a == firstAddress(n.t, n.results["b"]) {
				n.t.Errorf("got %s, want the address of the deleted container", a)
			}
			n.OK(n.call("CHECK", "b"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newLostNode(t)
			taken := map[string]bool{n.add("a"): true, n.add("b"): true}
			n.Forget()
			c.do(n, taken)
			n.OK(n.gc())
			for id := range n.spaces {
				if c.name != "namespace gone" || id != "a" {
					n.bare(id, "after GC with an empty list")
				}
			}
			if now := n.State(nil); now != n.pristine {
				t.Errorf("after GC with an empty list: have\n%s\nwant\n%s", now, n.pristine)
			}
		})
	}
}

// TestStateLostInDoubt: a container that the runtime has not detached keeps its
// address while its namespace may exist, even if no interface is found in it.
// An invalid entry of the cache reserves nothing.
func TestStateLostInDoubt(t *testing.T) {
	for _, c := range []struct {
		name  string
		taken bool
		// doubt changes the container. It may return another path of the
		// namespace.
		doubt func(n *lostNode) string
	}{
		{"no label", true, func(n *lostNode) string {
			n.inside("a", func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") })
			return ""
		}},
		{"no interface", true, func(n *lostNode) string { n.inside("a", netlink.LinkDel); return "" }},
		{"not a namespace", true, func(n *lostNode) string {
			file := filepath.Join(n.Dir(), "netns")
			must(n.t, os.WriteFile(file, nil, 0o600))
			return file
		}},
		{"unreadable", true, func(n *lostNode) string {
			loop := filepath.Join(n.Dir(), "netns")
			must(n.t, os.Symlink(loop, loop))
			return loop
		}},
		{"no path", false, func(n *lostNode) string { return filepath.Join(n.Dir(), "netns") }},
		{"the host's namespace", false, func(*lostNode) string { return "/proc/self/ns/net" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newLostNode(t)
			had := n.add("a")
			call := n.call("ADD", "a")
			if path := c.doubt(n); path != "" {
				call.Netns = path
				n.Cache(call, n.results["a"])
			}
			n.Forget()
			if now := n.add("new"); now == had == c.taken {
				t.Errorf("next address after %s is %s", had, now)
			}
			n.OK(n.call("DEL", "a"))
			n.del("new")
			n.OK(n.gc())
			if now := n.State(nil); now != n.pristine {
				t.Errorf("after DEL: have\n%s\nwant\n%s", now, n.pristine)
			}
		})
	}
}

// TestStateLostWithoutCache shows the limit: without a cache the container is
// not found, but its DEL, which has the namespace, finds the interface.
func TestStateLostWithoutCache(t *testing.T) {
	n := newLostNode(t)
	had := n.add("a")
	must(t, os.RemoveAll(n.CacheDir()))
	n.Forget()
	c := n.call("ADD", "new")
	if now := firstAddress(t, n.OK(c).Stdout); now != had {
		t.Errorf("got %s: the limit in docs/troubleshooting.md no longer exists", now)
	}
	c.Verb = "DEL"
	n.OK(c)
	n.OK(n.call("DEL", "a"))
	n.bare("a", "after DEL")
	if now := n.State(nil); now != n.pristine {
		t.Errorf("after DEL: have\n%s\nwant\n%s", now, n.pristine)
	}
}

// TestStateLostStatic: addresses that host-local did not assign are in no pool.
func TestStateLostStatic(t *testing.T) {
	n := newLostNode(t)
	c := n.call("ADD", "a")
	c.Conf = rolestest.WithKeys(t, c.Conf, map[string]any{"ipam": map[string]any{
		"type": "static", "addresses": []any{map[string]any{"address": "10.1.0.2/24"}},
	}})
	n.Cache(c, n.OK(c).Stdout)
	n.Forget()
	if now := n.add("new"); !strings.HasPrefix(now, "10.1.0.2/") {
		t.Errorf("first address of the pool is %s", now)
	}
	c.Verb, c.Netns = "DEL", ""
	n.OK(c)
	n.bare("a", "after DEL")
}
