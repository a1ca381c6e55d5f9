package portmap_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// town is a node with containers behind a bridge, and a host outside:
//
//	container - br0 10.1.0.1 fd00:1::1 - node - out0 192.0.2.1 2001:db8::1 - outside 192.0.2.2, .3 2001:db8::2
type town struct {
	*rolestest.Env
	t       *testing.T
	outside *netopstest.NS
	chain   string
}

func newTown(t *testing.T) *town {
	t.Helper()
	return newTownOf(t, rolestest.NewEnv(t, all.Table()))
}

// newTownOf is a town with the given plugins.
func newTownOf(t *testing.T, node *rolestest.Env) *town {
	t.Helper()
	w := &town{Env: node, t: t, outside: netopstest.New(t), chain: dualBridge}
	// Bridged frames must not pass the host's IP filters: a container behind a
	// bridge can reply to ::1 only then.
	set(t, "bridge/bridge-nf-call-ip6tables", "0")
	w.ip("link add out0 type veth peer name eth0 netns " + w.outside.Path())
	t.Cleanup(func() { w.ip("link del out0") })
	for _, args := range []string{"addr add 192.0.2.1/24 dev out0", "addr add 2001:db8::1/64 dev out0 nodad", "link set out0 up"} {
		w.ip(args)
	}
	w.outside.Do(t, func() error {
		for _, args := range []string{
			"link set lo up", "addr add 192.0.2.2/24 dev eth0", "addr add 192.0.2.3/24 dev eth0", "addr add 2001:db8::2/64 dev eth0 nodad", "link set eth0 up",
		} {
			run(t, "ip", strings.Fields(args)...)
		}
		return nil
	})
	t.Cleanup(func() {
		w.gc("ports", "br0")
		w.gc("other", "br1")
	})
	return w
}

// ip runs iproute2 on the node.
func (w *town) ip(args string) { w.t.Helper(); run(w.t, "ip", strings.Fields(args)...) }

// conf is a portmap configuration of network "ports".
func conf(mappings string, keys ...string) string {
	more := ""
	for _, k := range keys {
		more += k + ","
	}
	return `{"name":"ports","type":"portmap","cniVersion":"1.1.0",` + more + `"runtimeConfig":{"portMappings":[` + mappings + `]}}`
}

const web = `{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":8080,"containerPort":80,"protocol":"udp"}`

// pod is a container that is attached and answers.
type pod struct {
	*netopstest.NS
	w      *town
	id     string
	result string
	addrs  []netip.Addr
	call   rolestest.Call
}

// attached is a container without ports that does not answer.
func (w *town) attached(id string) *pod {
	w.t.Helper()
	p := &pod{NS: netopstest.New(w.t), w: w, id: id}
	p.join("ports", w.chain, "eth0")
	return p
}

// run starts a container without ports.
func (w *town) run(id string) *pod {
	w.t.Helper()
	p := w.attached(id)
	p.serve()
	return p
}

// join attaches the container to a network with an interface plugin.
func (p *pod) join(network, chain, ifname string) rolestest.Answer {
	p.w.t.Helper()
	var kind struct{ Type string }
	must(p.w.t, json.Unmarshal([]byte(chain), &kind))
	call := rolestest.Call{
		Type: kind.Type, Verb: "ADD", ID: p.id, Netns: p.Path(), IfName: ifname,
		Conf: rolestest.WithKeys(p.w.t, chain, map[string]any{"name": network, "cniVersion": "1.1.0"}),
	}
	a := p.w.OK(call)
	p.w.t.Cleanup(func() {
		call.Verb = "DEL"
		p.w.Run(call)
	})
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	must(p.w.t, json.Unmarshal([]byte(a.Stdout), &r))
	p.result, p.addrs = a.Stdout, nil
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.Addr())
	}
	return a
}

// plugin is a call of portmap for the container.
func (p *pod) plugin(verb, conf string) rolestest.Call {
	p.w.t.Helper()
	return rolestest.Call{
		Type: "portmap", Verb: verb, ID: p.id, Netns: p.Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(p.w.t, conf, map[string]any{"prevResult": json.RawMessage(p.result)}),
	}
}

// publish maps ports until the test ends or DEL is called.
func (p *pod) publish(conf string) *pod {
	p.w.t.Helper()
	p.w.OK(p.plugin("ADD", conf))
	p.call = p.plugin("DEL", conf)
	p.w.t.Cleanup(func() { p.w.Run(p.plugin("DEL", conf)) })
	return p
}

// withdraw is DEL of what was published.
func (p *pod) withdraw() { p.w.t.Helper(); p.w.OK(p.call) }

// serve answers on port 80 over TCP and UDP with the container's ID and the
// client's address.
func (p *pod) serve() {
	p.w.t.Helper()
	for _, v := range []string{"4", "6"} {
		var streams net.Listener
		var packets *net.UDPConn
		p.Do(p.w.t, func() (err error) {
			if streams, err = net.Listen("tcp"+v, ":80"); err != nil {
				return err
			}
			packets, err = net.ListenUDP("udp"+v, &net.UDPAddr{Port: 80})
			return err
		})
		p.w.t.Cleanup(func() { _ = streams.Close(); _ = packets.Close() })
		go p.answerStreams(streams)
		go p.answerPackets(packets)
	}
}

// answer is "id source".
func (p *pod) answer(from net.Addr) []byte {
	return fmt.Appendf(nil, "%s %s\n", p.id, netip.MustParseAddrPort(from.String()).Addr())
}

func (p *pod) answerStreams(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for r := bufio.NewReader(c); ; {
				if _, err := r.ReadString('\n'); err != nil {
					return
				}
				_, _ = c.Write(p.answer(c.RemoteAddr()))
			}
		}()
	}
}

func (p *pod) answerPackets(c *net.UDPConn) {
	b := make([]byte, 100)
	for {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(p.answer(from), from)
	}
}

// dial opens a connection from a namespace, nil for the node's, with the given
// source address or "".
// address or "".
func (w *town) dial(from *netopstest.NS, network, source, to string) (net.Conn, error) {
	w.t.Helper()
	d := net.Dialer{Timeout: await.Patience}
	if source != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
		}
	}
	var c net.Conn
	var failed error
	open := func() error {
		c, failed = d.Dial(network, to)
		return nil
	}
	if from == nil {
		_ = open()
	} else {
		from.Do(w.t, open)
	}
	if failed != nil {
		return nil, failed
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c, c.SetDeadline(await.Deadline())
}

// ask sends a request on a connection and returns the reply: "id source".
func ask(c net.Conn) (string, error) {
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	return strings.TrimSpace(string(b[:n])), err
}

// wants fails the test unless the reply is the expected one. "" means that the
// connection is refused.
func (w *town) wants(want string, from *netopstest.NS, network, source, host string, port int) {
	w.t.Helper()
	to := net.JoinHostPort(host, strconv.Itoa(port))
	c, err := w.dial(from, network, source, to)
	have := ""
	if err == nil {
		have, err = ask(c)
	}
	if have != want || (err == nil) != (want != "") {
		w.t.Errorf("%s %s from %q: %q, %v, want %q", network, to, source, have, err, want)
	}
}

// gc runs GC for everything that a network has left.
func (w *town) gc(network, bridge string) {
	w.t.Helper()
	for _, typ := range []string{"bridge", "portmap"} {
		c := fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":%q,"bridge":%q,"cni.dev/valid-attachments":[]}`, network, typ, bridge)
		w.OK(rolestest.Call{Type: typ, Verb: "GC", Conf: c})
	}
}
