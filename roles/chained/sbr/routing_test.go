package sbr_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// change adds or deletes the interface's route to a destination in a table. A
// nil destination is the default route.
func change(l netlink.Link, table int, dst *net.IPNet, do func(*netlink.Route) error) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Attrs().Index, Table: table}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, r := range routes {
		isDefault := r.Dst == nil || r.Dst.String() == "0.0.0.0/0"
		if dst == nil && isDefault || dst != nil && r.Dst != nil && r.Dst.String() == dst.String() {
			return do(&r)
		}
	}
	return fmt.Errorf("no route to %v in table %d", dst, table)
}

// two are a container's two networks, each with its own bridge.
var two = []string{
	`{"name":"one","type":"bridge","bridge":"br1","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`,
	`{"name":"two","type":"bridge","bridge":"br2","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00:2::/64"}]]}}`,
}

// node is a node with one container.
type node struct {
	*rolestest.Env
	t  *testing.T
	ns *netopstest.NS
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t)}
	t.Cleanup(func() {
		for _, conf := range two {
			c := n.call("GC", 0, "", "")
			c.Type, c.Conf = "bridge", rolestest.WithKeys(t, conf, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []any{}})
			n.OK(c)
		}
	})
	return n
}

// call is a call of the i-th network, for the bridge role or for sbr after it.
func (n *node) call(verb string, i int, typ, prev string) rolestest.Call {
	n.t.Helper()
	c := rolestest.Call{Type: typ, Verb: verb, ID: "c1", Netns: n.ns.Path(), IfName: fmt.Sprintf("eth%d", i)}
	more := map[string]any{"cniVersion": "1.1.0", "type": typ}
	if prev != "" {
		more["prevResult"] = json.RawMessage(prev)
	}
	c.Conf = rolestest.WithKeys(n.t, two[i], more)
	return c
}

// attach adds the interfaces of both networks and returns the results.
func (n *node) attach() []string {
	n.t.Helper()
	var results []string
	for i := range two {
		results = append(results, n.OK(n.call("ADD", i, "bridge", "")).Stdout)
	}
	return results
}

// TestTraffic: what the container sends from an address leaves through that
// address's interface, to any destination, with IPv4 and IPv6.
func TestTraffic(t *testing.T) {
	n := newNode(t)
	addOutside(t)
	results := n.attach()
	for i := range two {
		n.OK(n.call("ADD", i, "sbr", results[i]))
	}
	for i := range two {
		n.OK(n.call("CHECK", i, "sbr", results[i]))
		n.OK(n.call("CHECK", i, "bridge", results[i]))
	}
	for i, out := range []string{"eth0", "eth1"} {
		for _, c := range []struct{ from, to, via string }{
			{fmt.Sprintf("10.%d.0.2", i+1), outside4, fmt.Sprintf("10.%d.0.1", i+1)},
			{fmt.Sprintf("fd00:%d::2", i+1), outside6, fmt.Sprintf("fd00:%d::1", i+1)},
			{fmt.Sprintf("10.%d.0.2", i+1), fmt.Sprintf("10.%d.0.1", 2-i), fmt.Sprintf("10.%d.0.1", i+1)},
		} {
			n.ns.Do(t, func() error {
				o, err := exec.Command("ip", "route", "get", c.to, "from", c.from).CombinedOutput()
				if want := "via " + c.via + " dev " + out; !strings.Contains(string(o), want) {
					t.Errorf("from %s to %s: %swant %q", c.from, c.to, o, want)
				}
				return err
			})
		}
		n.exchange(fmt.Sprintf("10.%d.0.2", i+1), fmt.Sprintf("br%d", i+1))
		n.exchange(fmt.Sprintf("fd00:%d::2", i+1), fmt.Sprintf("br%d", i+1))
	}
}

// outside4 and outside6 are addresses of the host outside both networks.
const outside4, outside6 = "198.51.100.1", "2001:db8::1"

// addOutside gives the host these addresses.
func addOutside(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{outside4 + "/32", outside6 + "/128"} {
		a, err := netlink.ParseAddr(text)
		if err == nil {
			err = netlink.AddrAdd(lo, a)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netlink.AddrDel(lo, a) })
	}
}

// exchange makes a server in the container answer a client of the host whose
// address is outside both networks. The reply must arrive through the bridge.
func (n *node) exchange(addr, bridge string) {
	n.t.Helper()
	outside := map[bool]string{true: outside4, false: outside6}[strings.Contains(addr, ".")]
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		n.t.Fatal(err)
	}
	before := br.Attrs().Statistics.RxPackets
	var server net.PacketConn
	n.ns.Do(n.t, func() error {
		server, err = net.ListenPacket("udp", net.JoinHostPort(addr, "7"))
		return err
	})
	defer server.Close()
	go func() {
		b := make([]byte, 64)
		for {
			k, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:k], from)
		}
	}()
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(outside)}}
	c, err := d.Dial("udp", net.JoinHostPort(addr, "7"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 64)
	if err := c.SetDeadline(await.Deadline()); err != nil {
		n.t.Fatal(err)
	}
	if _, err = c.Write([]byte("hello")); err == nil {
		_, err = c.Read(b)
	}
	if err != nil {
		n.t.Fatalf("%s from %s: %v", addr, outside, err)
	}
	if br, err = netlink.LinkByName(bridge); err != nil || br.Attrs().Statistics.RxPackets == before {
		n.t.Errorf("%s answered by another interface, %v", addr, err)
	}
}

// TestParallel: concurrent attachments of one container choose different
// tables.
func TestParallel(t *testing.T) {
	n := newNode(t)
	results := n.attach()
	for range 10 {
		var all sync.WaitGroup
		answers := make([]rolestest.Answer, len(two))
		for i := range two {
			call := n.call("ADD", i, "sbr", results[i])
			all.Go(func() { answers[i] = n.Run(call) })
		}
		all.Wait()
		for i := range two {
			if answers[i].Code != 0 {
				t.Fatalf("%s%s", answers[i].Stdout, answers[i].Stderr)
			}
			n.OK(n.call("CHECK", i, "sbr", results[i]))
		}
		tables := map[int]int{}
		n.ns.Do(t, func() error {
			rules, err := netlink.RuleList(netlink.FAMILY_ALL)
			for _, r := range rules {
				if r.Src != nil {
					tables[r.Table]++
				}
			}
			return err
		})
		if len(tables) != 4 {
			t.Fatalf("rules by table: %v, want four tables", tables)
		}
		for i := range two {
			n.OK(n.call("DEL", i, "sbr", results[i]))
		}
	}
}

// TestDelOfOne: DEL of one attachment leaves the other's rules. If the path of
// the container's namespace is gone, DEL leaves no file there. The reference
// fails, or leaves a file.
func TestDelOfOne(t *testing.T) {
	n := newNode(t)
	results := n.attach()
	before := n.ns.Snapshot(t)
	for i := range two {
		n.OK(n.call("ADD", i, "sbr", results[i]))
	}
	del := n.call("DEL", 0, "sbr", "")
	del.Netns = ""
	n.OK(del)
	n.OK(n.call("CHECK", 1, "sbr", results[1]))
	gone := filepath.Join(n.Dir(), "gone")
	del = n.call("DEL", 1, "sbr", "")
	del.Netns = gone
	n.OK(del)
	n.OK(del)
	if now := n.ns.Snapshot(t); now != before {
		t.Errorf("after DEL:\n%swant\n%s", now, before)
	}
	if _, err := os.Lstat(gone); !os.IsNotExist(err) {
		t.Errorf("a file where the namespace was: %v", err)
	}
	for _, path := range []string{"", gone} {
		if out, err := n.reference("DEL", path, results[1]); err == nil {
			t.Errorf("the reference's DEL succeeds with %q: %s", path, out)
		}
	}
}

// reference calls the reference plugin for the second network.
func (n *node) reference(verb, netns, prev string) (string, error) {
	n.t.Helper()
	path, err := filepath.Abs("../../../bin/peers/sbr")
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		n.t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID=c1", "CNI_NETNS="+netns, "CNI_IFNAME=eth1", "CNI_PATH="+filepath.Dir(path))
	c := n.call(verb, 1, "sbr", prev)
	cmd.Stdin = strings.NewReader(rolestest.WithKeys(n.t, c.Conf, map[string]any{"cniVersion": "1.0.0"}))
	var out bytes.Buffer
	cmd.Stdout = &out
	err = cmd.Run()
	return out.String(), err
}

// TestInherit: the rules of the reference's sbr are removed without a record.
// Our CHECK compares them; the reference's CHECK compares nothing.
func TestInherit(t *testing.T) {
	n := newNode(t)
	results := n.attach()
	n.OK(n.call("ADD", 0, "sbr", results[0]))
	if out, err := n.reference("ADD", n.ns.Path(), results[1]); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	drop := func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		for _, r := range rules {
			if r.Src != nil && r.Src.String() == "10.2.0.2/32" {
				return netlink.RuleDel(&r)
			}
		}
		return err
	}
	n.OK(n.call("CHECK", 1, "sbr", results[1]))
	n.ns.Do(t, drop)
	if out, err := n.reference("CHECK", n.ns.Path(), results[1]); err != nil {
		t.Errorf("the reference's CHECK detects the change: %s", out)
	}
	n.Fail(n.call("CHECK", 1, "sbr", results[1]), 0)
	n.OK(n.call("DEL", 1, "sbr", results[1]))
	n.ns.Do(t, func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		own := 0
		for _, r := range rules {
			if r.Src != nil && strings.Contains(r.Src.String(), "2::2") || r.Src != nil && strings.HasPrefix(r.Src.String(), "10.2.") {
				t.Errorf("left: %s", r)
			} else if r.Src != nil {
				own++
			}
		}
		if own != 2 {
			t.Errorf("%d rules of the other attachment, want 2", own)
		}
		return err
	})
	n.OK(n.call("CHECK", 0, "sbr", results[0]))
}
