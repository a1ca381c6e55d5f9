package attach_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// The node has two addresses of each family that are not those of the interface to the outside.
const (
	first4, second4 = "203.0.113.7", "203.0.113.8"
	first6, second6 = "2001:db8:1::7", "2001:db8:1::8"
)

// egressNode is a node with a machine outside, 192.0.2.2 and 2001:db8::2, which has routes to the
// node's addresses and none to containers.
type egressNode struct {
	*rolestest.Env
	t       *testing.T
	outside *netopstest.NS
}

func newEgressNode(t *testing.T) *egressNode {
	t.Helper()
	n := &egressNode{Env: rolestest.NewEnv(t, table()), t: t, outside: netopstest.New(t)}
	f, err := os.Open(n.outside.Path())
	must(t, err)
	defer f.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd()))}
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() { must(t, netlink.LinkDel(pair)) })
	must(t, netopstest.LinkUp("out0", "192.0.2.1/24", "2001:db8::1/64"))
	n.outside.Do(t, func() error {
		if err := netopstest.LinkUp("eth0", "192.0.2.2/24", "2001:db8::2/64"); err != nil {
			return err
		}
		for dst, gw := range map[string]string{"203.0.113.0/24": "192.0.2.1", "2001:db8:1::/64": "2001:db8::1"} {
			p, err := netlink.ParseIPNet(dst)
			if err != nil {
				return err
			}
			if err := netlink.RouteAdd(&netlink.Route{Dst: p, Gw: net.ParseIP(gw)}); err != nil {
				return err
			}
		}
		return nil
	})
	for _, a := range []string{first4 + "/32", second4 + "/32", first6 + "/128", second6 + "/128"} {
		netopstest.LocalAddress(t, a)
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// egressPod is a container of the node.
type egressPod struct {
	*netopstest.NS
	node  *egressNode
	call  rolestest.Call
	addrs []string
}

// network is a network of a type. The names of networks on one bridge differ in the third number of their subnets.
func network(typ, name string, third int, keys string) string {
	subnet4, subnet6 := fmt.Sprintf("10.1.%d.0/24", third), fmt.Sprintf("fd00:%d::/64", third)
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":%q%s,"ipam":{"type":"host-local","ranges":[[{"subnet":%q}],[{"subnet":%q}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`, name, typ, keys, subnet4, subnet6)
}

// keysOf are the keys with which a type masquerades.
func keysOf(typ string) string {
	switch typ {
	case "bridge":
		return `,"bridge":"br0","isDefaultGateway":true,"ipMasq":true`
	case "ptp":
		return `,"ipMasq":true`
	}
	return ""
}

func (n *egressNode) attach(conf, id string) *egressPod {
	n.t.Helper()
	var c struct{ Type string }
	must(n.t, json.Unmarshal([]byte(conf), &c))
	ns := netopstest.New(n.t)
	p := &egressPod{NS: ns, node: n, call: rolestest.Call{Type: c.Type, Verb: "ADD", ID: id, Netns: ns.Path(), IfName: "eth0", Conf: conf}}
	result := n.OK(p.call).Stdout
	var r roles.Result
	must(n.t, json.Unmarshal([]byte(result), &r))
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.IP.String())
	}
	p.call.Conf = rolestest.WithKeys(n.t, conf, map[string]any{"prevResult": json.RawMessage(result)})
	return p
}

// do runs another verb for the pod.
func (p *egressPod) do(verb string) rolestest.Call {
	c := p.call
	c.Verb = verb
	return c
}

// leavesWith checks the sources that the machine outside sees.
func (p *egressPod) leavesWith(what, want4, want6 string) {
	p.node.t.Helper()
	netopstest.CheckDatagram(p.node.t, what+", IPv4", p, netopstest.Listen(p.node.t, p.node.outside, "192.0.2.2:0"), want4)
	netopstest.CheckDatagram(p.node.t, what+", IPv6", p, netopstest.Listen(p.node.t, p.node.outside, "[2001:db8::2]:0"), want6)
}

// collect runs GC without valid attachments.
func (n *egressNode) collect(conf string) {
	n.t.Helper()
	var c struct{ Type string }
	must(n.t, json.Unmarshal([]byte(conf), &c))
	n.OK(rolestest.Call{Type: c.Type, Verb: "GC", Conf: rolestest.WithKeys(n.t, conf, map[string]any{"cni.dev/valid-attachments": []string{}})})
}

func egress(addresses ...string) string {
	raw, _ := json.Marshal(addresses) //nolint:errchkjson // strings
	return `,"egressAddress":` + string(raw)
}

// TestEgress: containers reach the outside with the egressAddress, and each other and the node with their own
// addresses. A changed key is for the containers that come after it. CHECK compares the elements. DEL and GC
// leave nothing.
func TestEgress(t *testing.T) {
	for _, typ := range []string{"bridge", "ptp", "routed"} {
		for _, backend := range []string{"nftables", "iptables"} {
			t.Run(typ+" "+backend, func(t *testing.T) {
				n := newEgressNode(t)
				keys := keysOf(typ) + `,"ipMasqBackend":"` + backend + `"`
				conf := network(typ, "pods", 0, keys+egress(first4, first6))
				n.collect(conf) // what other tests of the package left
				pristine := n.State([]string{"sysctl net/"})
				a, b := n.attach(conf, "a"), n.attach(conf, "b")
				a.leavesWith("a", first4, first6)
				b.leavesWith("b", first4, first6)
				for i, addr := range b.addrs {
					netopstest.CheckDatagram(t, "a to b", a, netopstest.Listen(t, b, net.JoinHostPort(addr, "5000")), a.addrs[i])
				}
				netopstest.CheckDatagram(t, "to the node", a, netopstest.Listen(t, nil, "192.0.2.1:5000"), a.addrs[0])
				netopstest.CheckDatagram(t, "to the egressAddress", a, netopstest.Listen(t, nil, first4+":5000"), a.addrs[0])
				n.OK(a.do("CHECK"))

				other := n.attach(network(typ, "pods", 0, keys+egress(second4, second6)), "c")
				plain := n.attach(network(typ, "pods", 0, keys), "d")
				other.leavesWith("c", second4, second6)
				a.leavesWith("a beside c", first4, first6)
				if typ != "routed" { // without snat, it leaves with its own address
					plain.leavesWith("d", "192.0.2.1", "2001:db8::1")
				}
				n.Fail(rolestest.Call{
					Type: typ, Verb: "CHECK", ID: "a", Netns: a.Path(), IfName: "eth0",
					Conf: rolestest.WithKeys(t, a.call.Conf, map[string]any{"egressAddress": second4}),
				}, 106)
				for _, p := range []*egressPod{other, plain, b} {
					n.OK(p.do("DEL"))
				}
				a.leavesWith("a after DEL of others", first4, first6)
				n.OK(a.do("CHECK"))
				n.OK(a.do("DEL"))
				if s := n.State(nil); strings.Contains(s, first4) && strings.Contains(s, "egress4 element") {
					t.Errorf("after DEL:\n%s", s)
				}
				n.collect(conf)
				if have := n.State([]string{"sysctl net/"}); have != pristine {
					t.Errorf("after DEL and GC:\n%s\nbefore:\n%s", have, pristine)
				}
			})
		}
	}
}

// TestEgressOneFamily: the family without an egressAddress is masqueraded as without the key. Networks of
// egressExcept are reached as without it.
func TestEgressOneFamily(t *testing.T) {
	for _, typ := range []string{"bridge", "ptp"} {
		t.Run(typ, func(t *testing.T) {
			n := newEgressNode(t)
			conf := network(typ, "pods", 0, keysOf(typ)+`,"egressAddress":"`+first4+`"`)
			excepted := network(typ, "excepted", 1, strings.Replace(keysOf(typ), "br0", "br1", 1)+egress(first4)+`,"egressExcept":["192.0.2.0/24"]`)
			n.attach(conf, "a").leavesWith("a", first4, "2001:db8::1")
			n.attach(excepted, "b").leavesWith("b", "192.0.2.1", "2001:db8::1")
			for _, c := range []string{conf, excepted} {
				n.collect(c)
			}
		})
	}
}

// TestEgressOnOneBridge: two networks of a bridge have different egressAddresses. GC of one leaves the other's.
func TestEgressOnOneBridge(t *testing.T) {
	n := newEgressNode(t)
	pristine := n.State([]string{"sysctl net/"})
	one := network("bridge", "one", 1, keysOf("bridge")+egress(first4, first6))
	two := network("bridge", "two", 1, keysOf("bridge")+egress(second4, second6))
	for subnet, start := range map[string]string{"10.1.1.0/24": "10.1.1.100", "fd00:1::/64": "fd00:1::100"} {
		two = strings.Replace(two, `"subnet":"`+subnet+`"`, `"subnet":"`+subnet+`","rangeStart":"`+start+`"`, 1)
	}
	a, b := n.attach(one, "a"), n.attach(two, "b")
	a.leavesWith("a", first4, first6)
	b.leavesWith("b", second4, second6)
	n.OK(a.do("DEL"))
	n.collect(one)
	b.leavesWith("b after GC of one", second4, second6)
	n.OK(b.do("DEL"))
	n.collect(two)
	if have := n.State([]string{"sysctl net/"}); have != pristine {
		t.Errorf("after GC of both:\n%s\nbefore:\n%s", have, pristine)
	}
}

func linkOf(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func addrOf(t *testing.T, text string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(text)
	must(t, err)
	return a
}

// TestEgressNotOnNode: ADD fails without the address on the node and changes nothing, also if a container has it.
// STATUS fails when the node loses it, with the code that says that containers are affected.
func TestEgressNotOnNode(t *testing.T) {
	for _, typ := range []string{"bridge", "ptp", "routed"} {
		t.Run(typ, func(t *testing.T) {
			n := newEgressNode(t)
			lo := linkOf(t, "lo")
			conf := network(typ, "pods", 0, keysOf(typ)+egress(first4, first6))
			p := n.attach(conf, "a")
			status := rolestest.Call{Type: typ, Verb: "STATUS", Conf: conf}
			n.OK(status)
			for _, c := range []struct{ address, fix string }{{first4 + "/32", "ip address add 203.0.113.7/32 dev"}, {first6 + "/128", "ip address add 2001:db8:1::7/128 dev"}} {
				must(t, netlink.AddrDel(lo, addrOf(t, c.address)))
				p.Do(t, func() error { return netlink.AddrAdd(linkOf(t, "lo"), addrOf(t, c.address)) })
				if a := n.Fail(status, 51); !strings.Contains(a.Stdout, "egressAddress: ") || !strings.Contains(a.Stdout, c.fix) {
					t.Errorf("STATUS without %s: %s", c.address, a.Stdout)
				}
				ns := netopstest.New(t)
				before := n.State(nil, ns)
				add := rolestest.Call{Type: typ, Verb: "ADD", ID: "b", Netns: ns.Path(), IfName: "eth0", Conf: conf}
				if a := n.Fail(add, 101); !strings.Contains(a.Stdout, "egressAddress: ") || !strings.Contains(a.Stdout, c.fix) {
					t.Errorf("ADD without %s: %s", c.address, a.Stdout)
				}
				if after := n.State(nil, ns); after != before {
					t.Errorf("a refused ADD changed\n%s\nto\n%s", before, after)
				}
				must(t, netlink.AddrAdd(lo, addrOf(t, c.address)))
				n.OK(status)
			}
			n.OK(p.do("DEL"))
			n.collect(conf)
		})
	}
}

// TestEgressOfNextContainer: a container with the address and the port of the one before leaves with its own
// egressAddress, although the kernel still tracks the connection of that one.
func TestEgressOfNextContainer(t *testing.T) {
	for _, typ := range []string{"bridge", "ptp"} {
		t.Run(typ, func(t *testing.T) {
			n := newEgressNode(t)
			conf := func(keys string) string {
				return `{"cniVersion":"1.1.0","name":"pods","type":"` + typ + `"` + keysOf(typ) + keys + `,"ipam":{"type":"static","addresses":[
					{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00::2/64","gateway":"fd00::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`
			}
			four, six := netopstest.Listen(t, n.outside, "192.0.2.2:5000"), netopstest.Listen(t, n.outside, "[2001:db8::2]:5000")
			for _, c := range []struct{ keys, want4, want6 string }{
				{egress(first4, first6), first4, first6}, {egress(second4, second6), second4, second6}, {"", "192.0.2.1", "2001:db8::1"}, {egress(first4, first6), first4, first6},
			} {
				p := n.attach(conf(c.keys), "a")
				for _, v := range []struct {
					from, want string
					to         *net.UDPConn
				}{{"10.1.0.2:7000", c.want4, four}, {"[fd00::2]:7000", c.want6, six}} {
					from := netopstest.Listen(t, p, v.from)
					_, err := from.WriteTo([]byte("x"), v.to.LocalAddr())
					must(t, err)
					_, seen, err := v.to.ReadFromUDPAddrPort(make([]byte, 9))
					must(t, err)
					if seen.Addr().Unmap().String() != v.want {
						t.Errorf("with %s: the source is %s, want %s", c.keys, seen.Addr(), v.want)
					}
					must(t, from.Close())
				}
				n.OK(p.do("DEL"))
			}
			n.collect(conf(""))
		})
	}
}

// TestEgressOfDeadContainer: a container whose address another program gives away again without a DEL does not
// keep the next one from it, if it no longer exists.
func TestEgressOfDeadContainer(t *testing.T) {
	n := newEgressNode(t)
	conf := `{"cniVersion":"1.1.0","name":"pods","type":"bridge","bridge":"br0","ipMasq":true,"isGateway":true` + egress(first4) +
		`,"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]}}`
	a := n.attach(conf, "a")
	second := rolestest.Call{Type: "bridge", Verb: "ADD", ID: "b", Netns: netopstest.New(t).Path(), IfName: "eth0", Conf: conf}
	if f := n.Fail(second, 112); !strings.Contains(f.Stdout, "egress of 10.1.0.2 on br0") {
		t.Errorf("ADD beside a container with the same address: %s", f.Stdout)
	}
	a.Do(t, func() error { return netlink.LinkDel(linkOf(t, "eth0")) })
	a.Remove(t)
	n.OK(second)
	second.Verb = "DEL"
	n.OK(second)
	n.collect(conf)
}
