package firewall_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// world is a host between networks of containers and an outside. All of them
// listen on one UDP port. Each test has another port, because the kernel keeps
// tracking connections of earlier tests.
type world struct {
	*rolestest.Env
	port  uint16
	t     *testing.T
	peers map[string]*peer
	count int
	// unwanted are datagrams that must not arrive.
	unwanted []string
}

// peer is a namespace with its addresses. The host has no namespace here.
type peer struct {
	name string
	ns   *netopstest.NS
	// call is the attachment's ADD of the interface plugin, prev its result.
	firewall rolestest.Call
	result   roles.Result
	addrs    [2]netip.Addr
	conns    [2]*net.UDPConn
}

// newWorld is the host with its outside: 192.0.2.2 and fd00:ff::2 behind out0.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Env: rolestest.NewEnv(t, all.Table()), t: t, peers: map[string]*peer{}}
	free, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.port = free.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	_ = free.Close()
	out := netopstest.New(t)
	run(t, "ip link add out0 type veth peer name eth0")
	run(t, "ip link set eth0 netns "+out.Path())
	t.Cleanup(func() { run(t, "ip link del out0") })
	for _, l := range []string{"ip addr add 192.0.2.1/24 dev out0", "ip addr add fd00:ff::1/64 dev out0 nodad", "ip link set out0 up"} {
		run(t, l)
	}
	in(t, out, "ip addr add 192.0.2.2/24 dev eth0", "ip addr add fd00:ff::2/64 dev eth0 nodad", "ip link set eth0 up",
		"ip route add default via 192.0.2.1", "ip route add default via fd00:ff::1")
	w.add(&peer{name: "outside", ns: out, addrs: [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("fd00:ff::2")}})
	for _, f := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(f, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// in runs programs in a namespace.
func in(t *testing.T, ns *netopstest.NS, lines ...string) {
	t.Helper()
	for _, l := range lines {
		run(t, "nsenter --net="+ns.Path()+" "+l)
	}
}

// add makes a peer listen.
func (w *world) add(p *peer) {
	w.t.Helper()
	w.peers[p.name] = p
	p.ns.Do(w.t, func() error {
		for i, a := range p.addrs {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, w.port)))
			if err != nil {
				return err
			}
			p.conns[i] = c
			w.t.Cleanup(func() { _ = c.Close() })
		}
		return nil
	})
}

// attach attaches a container to a network and runs the firewall role after it.
// The network's number determines its bridge and subnets.
func (w *world) attach(name string, network int, firewall string) *peer {
	w.t.Helper()
	p := w.attached(name, network, firewall)
	w.OK(p.firewall)
	return p
}

// attached is attach without the firewall's own ADD.
func (w *world) attached(name string, network int, firewall string) *peer {
	w.t.Helper()
	p := &peer{name: name, ns: netopstest.New(w.t)}
	net := fmt.Sprintf("net%d", network)
	bridge := rolestest.Call{Type: "bridge", Verb: "ADD", ID: name, Netns: p.ns.Path(), IfName: "eth0", Conf: fmt.Sprintf(
		`{"cniVersion":"1.1.0","name":%q,"type":"bridge","bridge":"br%d","isDefaultGateway":true,"hairpinMode":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd00:%d::/64"}]]}}`, net, network, network, network)}
	made := w.OK(bridge)
	if err := json.Unmarshal([]byte(made.Stdout), &p.result); err != nil {
		w.t.Fatal(err)
	}
	for i, ip := range p.result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		p.addrs[i] = a.Unmap()
	}
	p.firewall = bridge
	p.firewall.Type = "firewall"
	p.firewall.Conf = rolestest.WithKeys(w.t, firewall, map[string]any{
		"cniVersion": "1.1.0", "name": net, "type": "firewall", "prevResult": json.RawMessage(made.Stdout),
	})
	w.add(p)
	w.t.Cleanup(func() {
		for _, c := range []rolestest.Call{p.firewall, bridge} {
			c.Verb = "DEL"
			w.Run(c)
			c.Verb, c.Conf = "GC", rolestest.WithKeys(w.t, c.Conf, map[string]any{"cni.dev/valid-attachments": []any{}})
			w.Run(c)
		}
	})
	return p
}

// del runs the firewall's DEL of an attachment.
func (w *world) del(p *peer) {
	w.t.Helper()
	c := p.firewall
	c.Verb = "DEL"
	w.OK(c)
}

// check runs the firewall's CHECK.
func (w *world) check(p *peer) rolestest.Answer {
	w.t.Helper()
	c := p.firewall
	c.Verb = "CHECK"
	return w.Run(c)
}

// both are the address families of reach.
var both = [2]string{"IPv4", "IPv6"}

// reach tests whether a datagram from one peer to another arrives, in both
// address families.
func (w *world) reach(from, to string, want bool) {
	w.t.Helper()
	for i := range both {
		w.reachAt(from, i, netip.AddrPortFrom(w.peers[to].addrs[i], w.port), w.peers[to].conns[i], want)
	}
}

// reachAt sends a datagram to an address. If it must arrive, reachAt waits for
// it. If it must not, reachAt sends a second datagram that nothing can drop,
// from the host directly to the socket, and waits for that one. If the first
// arrives after the second, a later call reports it.
func (w *world) reachAt(from string, family int, target netip.AddrPort, at *net.UDPConn, want bool) {
	w.t.Helper()
	w.count++
	token := fmt.Sprintf("%s from %s to %s, datagram %d", both[family], from, target, w.count)
	source := w.peers[from].conns[family]
	for _, c := range []*net.UDPConn{at, source} { // this resolves the neighbours
		w.send(c, "warm up")
		w.receive(c, "warm up")
	}
	if !want {
		w.unwanted = append(w.unwanted, token)
	}
	if _, err := source.WriteToUDPAddrPort([]byte(token), target); err != nil && !isRefused(err) {
		w.t.Fatal(err)
	}
	if want {
		w.receive(at, token)
		return
	}
	marker := fmt.Sprintf("marker %d", w.count)
	w.send(at, marker)
	w.receive(at, marker)
}

// isRefused reports whether an error is the reply to an earlier datagram.
func isRefused(err error) bool {
	return strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "unreachable")
}

// send sends from a new socket of the host to a socket's own address.
func (w *world) send(at *net.UDPConn, text string) {
	w.t.Helper()
	c, err := net.DialUDP("udp", nil, at.LocalAddr().(*net.UDPAddr))
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(text)); err != nil {
		w.t.Fatal(err)
	}
}

// receive reads datagrams until it gets the given text.
func (w *world) receive(at *net.UDPConn, until string) {
	w.t.Helper()
	if err := at.SetReadDeadline(await.Deadline()); err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, 200)
	for {
		n, err := at.Read(b)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && isRefused(err) {
			continue
		}
		if err != nil {
			w.t.Fatalf("%q does not arrive: %v", until, err)
		}
		text := string(b[:n])
		if slices.Contains(w.unwanted, text) {
			w.t.Errorf("%q arrives", text)
		}
		if text == until {
			return
		}
	}
}
