package agent_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// pod is a container on a node with an echo server.
type pod struct {
	*node
	ns           *netopstest.NS
	addr4, addr6 netip.Addr
	call         rolestest.Call
	// result is the output of ADD.
	result string
	// servers are the sockets that hold the namespace.
	servers []*net.UDPConn
}

// attach attaches a pod with the CNI plugins for the node's hand-off file.
func (n *node) attach() *pod {
	t := n.w.t
	t.Helper()
	o, err := store.ReadOverlay(n.overlayFile())
	must(t, err)
	var ranges, routes []string
	for _, f := range []*store.OverlayFamily{o.IPv4, o.IPv6} {
		if f != nil {
			ranges = append(ranges, fmt.Sprintf(`[{"subnet":%q}]`, f.Subnet))
			routes = append(routes, fmt.Sprintf(`{"dst":%q}`, f.Networks[0]))
		}
	}
	return n.attachBy("bridge", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"overlay","type":"bridge","bridge":"cni0","isGateway":true,"mtu":%d,
		"ipam":{"type":"host-local","ranges":[%s],"routes":[%s]}}`, o.MTU, strings.Join(ranges, ","), strings.Join(routes, ",")))
}

// attachBy attaches a pod with a CNI plugin.
func (n *node) attachBy(plugin, conf string) *pod {
	t := n.w.t
	t.Helper()
	n.pods++
	p := &pod{node: n, ns: netopstest.New(t)}
	p.call = rolestest.Call{
		Type: plugin, Verb: "ADD", ID: fmt.Sprintf("%s-pod-%d", n.name, n.pods), Netns: p.ns.Path(), IfName: "eth0", Conf: conf, Args: n.args,
	}
	var out []byte
	cmd := n.Cmd(p.call)
	n.ns.Do(t, func() (err error) {
		out, err = cmd.Output()
		return err
	})
	var r roles.Result
	must(t, json.Unmarshal(out, &r))
	p.result = string(out)
	for _, i := range r.IPs {
		a, _ := netip.AddrFromSlice(i.Address.IP)
		if a = a.Unmap(); a.Is4() {
			p.addr4 = a
		} else {
			p.addr6 = a
		}
	}
	p.echo(p.addr4)
	p.echo(p.addr6)
	return p
}

// echoPort is the port of the pods' echo servers.
const echoPort = 7000

// answerTime is the time after which a pod repeats an unanswered request.
const answerTime = 100 * time.Millisecond

// echo answers every datagram and TCP connection to an address until the test ends.
func (p *pod) echo(a netip.Addr) {
	p.w.t.Helper()
	if a.IsValid() {
		p.servers = append(p.servers, echo(p.w.t, p.ns, a))
	}
}

// end removes the pod's namespace, and its interface with it.
func (p *pod) end() {
	p.w.t.Helper()
	for _, s := range p.servers {
		must(p.w.t, s.Close())
	}
	p.ns.Remove(p.w.t)
}

func echo(t *testing.T, ns *netopstest.NS, a netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	ns.Do(t, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, echoPort)))
		return err
	})
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	return c
}

// asks sends one request to the other pod in one family, and reports whether it is answered.
func (p *pod) asks(q *pod, v6 bool) bool {
	p.w.t.Helper()
	if v6 {
		return p.asksFrom(p.addr6, q.addr6)
	}
	return p.asksFrom(p.addr4, q.addr4)
}

// asksFrom sends one request from an address of the pod, and reports whether it is answered.
func (p *pod) asksFrom(from, to netip.Addr) bool {
	t := p.w.t
	t.Helper()
	var c *net.UDPConn
	p.ns.Do(t, func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
		return err
	})
	defer c.Close()
	b := []byte("are you there?")
	if _, err := c.Write(b); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(answerTime))
	_, err := c.Read(b)
	return err == nil
}

// reach waits until every pod answers every other pod, and returns the time that it took.
func (w *world) reach(v6 bool, pods ...*pod) time.Duration {
	w.t.Helper()
	begin := time.Now()
	for _, p := range pods {
		for _, q := range pods {
			if p == q {
				continue
			}
			w.within(func() bool { return p.asks(q, v6) }, func() string {
				return fmt.Sprintf("a pod of %s does not reach one of %s (IPv6 %v)\n%s\n%s", p.name, q.name, v6, p.dump(), q.dump())
			})
		}
	}
	return time.Since(begin)
}

// detach detaches a pod with the plugin that attached it.
func (n *node) detach(p *pod) {
	n.w.t.Helper()
	call := p.call
	call.Verb = "DEL"
	var answer rolestest.Answer
	n.ns.Do(n.w.t, func() error { answer = n.Run(call); return nil })
	if answer.Code != 0 {
		n.w.t.Errorf("DEL: %s%s", answer.Stdout, answer.Stderr)
	}
}
