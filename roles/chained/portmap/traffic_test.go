package portmap_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// TestTraffic is the reference's live scenarios "TCP v4 (from host, localhost,
// hairpin, other ns)", and the same for UDP and IPv6: every client reaches the
// port, and the container sees the client's own address whenever its reply
// would reach the client.
func TestTraffic(t *testing.T) {
	w := newTown(t)
	a := w.run("a").publish(conf(web))
	b := w.run("b")
	a4, b4 := a.addrs[0].String(), b.addrs[0].String()
	const node4, node6 = "10.1.0.1", "fd00:1::1"
	for _, network := range []string{"tcp", "udp"} {
		for _, v := range []struct {
			name            string
			from            *netopstest.NS
			source, to, see string
		}{
			{"node", nil, "", "192.0.2.1", "192.0.2.1"},
			{"node, by the bridge's address", nil, "", node4, node4},
			{"localhost", nil, "", "127.0.0.1", node4},
			{"localhost with another address", nil, "127.0.0.5", "127.0.0.9", node4},
			{"outside", w.outside, "192.0.2.2", "192.0.2.1", "192.0.2.2"},
			{"other container", b.NS, b4, "192.0.2.1", node4},
			{"other container, by the bridge's address", b.NS, b4, node4, node4},
			{"itself", a.NS, a4, "192.0.2.1", node4},
			{"node, IPv6", nil, "", "2001:db8::1", "2001:db8::1"},
			{"localhost, IPv6", nil, "", "::1", node6},
			{"outside, IPv6", w.outside, "2001:db8::2", "2001:db8::1", "2001:db8::2"},
			{"other container, IPv6", b.NS, b.addrs[1].String(), "2001:db8::1", node6},
			{"itself, IPv6", a.NS, a.addrs[1].String(), "2001:db8::1", node6},
		} {
			t.Run(network+" "+v.name, func(t *testing.T) {
				here := *w
				here.t = t
				here.wants("a "+v.see, v.from, network, v.source, v.to, 8080)
			})
		}
	}
	a.withdraw()
	w.wants("", nil, "tcp", "", "192.0.2.1", 8080)
	w.wants("", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
}

// TestLongLived: connections to a container continue while other containers are
// attached and detached.
func TestLongLived(t *testing.T) {
	w := newTown(t)
	w.run("a").publish(conf(web))
	streams, err := w.dial(w.outside, "tcp", "192.0.2.2", "192.0.2.1:8080")
	must(t, err)
	packets, err := w.dial(w.outside, "udp", "192.0.2.2", "192.0.2.1:8080")
	must(t, err)
	asks := func(when string) {
		t.Helper()
		for _, c := range []net.Conn{streams, packets} {
			if have, err := ask(c); have != "a 192.0.2.2" {
				t.Errorf("%s: %q, %v", when, have, err)
			}
		}
	}
	asks("before")
	b := w.run("b").publish(conf(`{"hostPort":8081,"containerPort":80},{"hostPort":8081,"containerPort":80,"protocol":"udp"}`))
	asks("beside another")
	w.wants("b 192.0.2.3", w.outside, "tcp", "192.0.2.3", "192.0.2.1", 8081)
	b.withdraw()
	asks("after the DEL of another container")
}

// TestUDPBefore: a UDP client sends before the container exists, and continues
// from the same port while one container replaces another: the reference's
// scenario "UDP survives a second container on the same port".
func TestUDPBefore(t *testing.T) {
	w := newTown(t)
	client, err := w.dial(w.outside, "udp", "192.0.2.2", "192.0.2.1:8080")
	must(t, err)
	if have, err := ask(client); err == nil {
		t.Errorf("a reply before the container exists: %q", have)
	}
	for _, id := range []string{"a", "b"} {
		p := w.run(id).publish(conf(web))
		if have, err := ask(client); have != id+" 192.0.2.2" {
			t.Errorf("with %s: %q, %v", id, have, err)
		}
		p.withdraw()
	}
}

// TestConditions uses two containers with their own conditions. With the
// reference the conditions of the last ADD apply to both.
func TestConditions(t *testing.T) {
	w := newTown(t)
	a := w.run("a").publish(conf(`{"hostPort":8080,"containerPort":80}`, `"conditionsV4":["!","-s","192.0.2.3"]`, `"conditionsV6":["ip6 saddr 2001:db8::/64"]`))
	w.run("b").publish(conf(`{"hostPort":8081,"containerPort":80}`, `"conditionsV4":["ip saddr != 192.0.2.2","iifname","out0"]`))
	w.run("c").publish(conf(`{"hostPort":8082,"containerPort":80,"hostIP":"192.0.2.1"}`, `"conditionsV4":["-i","out+"]`, `"masqAll":true`, `"markMasqBit":0`))
	w.run("e").publish(conf(`{"hostPort":8084,"containerPort":80}`,
		`"conditionsV4":["ip","daddr","!=","{ 127.0.0.0/8, 198.19.254.254 }","ip saddr {192.0.2.1, 192.0.2.3}"]`, `"conditionsV6":["-s","2001:db8::1,2001:db8::2"]`))
	check := func() {
		t.Helper()
		for _, v := range []struct {
			source, to string
			port       int
			want       string
		}{
			{"192.0.2.2", "192.0.2.1", 8080, "a 192.0.2.2"},
			{"192.0.2.3", "192.0.2.1", 8080, ""},
			{"2001:db8::2", "2001:db8::1", 8080, "a 2001:db8::2"},
			{"192.0.2.2", "192.0.2.1", 8081, ""},
			{"192.0.2.3", "192.0.2.1", 8081, "b 192.0.2.3"},
			{"2001:db8::2", "2001:db8::1", 8081, "b 2001:db8::2"},
			{"192.0.2.2", "192.0.2.1", 8082, "c 10.1.0.1"},
			{"192.0.2.2", "192.0.2.1", 8084, ""},
			{"192.0.2.3", "192.0.2.1", 8084, "e 192.0.2.3"},
			{"2001:db8::2", "2001:db8::1", 8084, "e 2001:db8::2"},
		} {
			w.wants(v.want, w.outside, "tcp", v.source, v.to, v.port)
		}
		w.wants("", nil, "tcp", "", "192.0.2.1", 8081) // not through the device
		w.wants("", nil, "tcp", "", "127.0.0.1", 8084)
		w.wants("e 192.0.2.1", nil, "tcp", "", "192.0.2.1", 8084)
	}
	check()
	run(t, "nft", "flush", "ruleset")
	w.Fail(a.plugin("CHECK", conf(`{"hostPort":8080,"containerPort":80}`)), 0)
	w.run("d").publish(conf(`{"hostPort":8083,"containerPort":80}`))
	w.OK(a.plugin("CHECK", conf(`{"hostPort":8080,"containerPort":80}`)))
	check()
}

// TestTaken: two containers request one port, for all addresses, for one
// address, and after the first container's namespace is gone. With the
// reference the last ADD gets the port.
func TestTaken(t *testing.T) {
	w := newTown(t)
	one, any4 := `{"hostPort":8080,"containerPort":80,"hostIP":"192.0.2.1"}`, `{"hostPort":8080,"containerPort":80,"hostIP":"0.0.0.0"}`
	six, udp := `{"hostPort":8080,"containerPort":80,"hostIP":"2001:db8::1"}`, `{"hostPort":8080,"containerPort":80,"protocol":"udp"}`
	for i, v := range []struct{ held, wanted string }{{one, one}, {one, any4}, {any4, one}, {any4, any4}, {web, six}} {
		holder := fmt.Sprintf("a%d", i)
		a, b := w.run(holder).publish(conf(v.held)), w.run(fmt.Sprintf("b%d", i))
		have := w.Fail(b.plugin("ADD", conf(v.wanted)), 0)
		for _, word := range []string{"8080/tcp", `"` + holder + `"`, `"ports"`, `"eth0"`} {
			if !strings.Contains(strings.ReplaceAll(have.Stdout, `\`, ""), word) {
				t.Errorf("error %s does not name %s", have.Stdout, word)
			}
		}
		w.OK(a.plugin("CHECK", conf(v.held)))
		a.withdraw()
		b.publish(conf(v.wanted)).withdraw()
	}
	a := w.attached("a").publish(conf(any4))
	b := w.run("b").publish(conf(six + "," + udp))
	w.wants("b 2001:db8::2", w.outside, "tcp", "2001:db8::2", "2001:db8::1", 8080)
	b.withdraw()
	a.Remove(t)
	b.publish(conf(web))
	w.wants("b 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
}

// TestTwoNetworks passes the ports of one container to both of its networks, as
// podman does. The first network has them until its DEL. DEL of the second
// network does not remove them, as with the reference.
func TestTwoNetworks(t *testing.T) {
	w := newTown(t)
	a := w.run("a").publish(conf(web))
	w.Extra = append(w.Extra, "CNIBOX_LOG=info")
	second := *a
	second.join("other", strings.NewReplacer("br0", "br1", "10.1.0", "10.2.0", "fd00:1", "fd00:2").Replace(dualBridge), "eth1")
	call := func(verb string) rolestest.Call {
		c := second.plugin(verb, strings.Replace(conf(web), "ports", "other", 1))
		c.IfName = "eth1"
		return c
	}
	have := w.OK(call("ADD"))
	if !strings.Contains(have.Stderr, "8080/tcp of IPv4") {
		t.Errorf("the log does not contain the ports that the first network keeps: %s", have.Stderr)
	}
	w.wants("a 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
	w.OK(call("CHECK"))
	w.OK(a.plugin("CHECK", conf(web)))
	run(t, "nft", "flush", "ruleset")
	w.attached("b") // restores them
	w.OK(call("CHECK"))
	w.OK(a.plugin("CHECK", conf(web)))
	w.OK(call("DEL"))
	w.OK(a.plugin("CHECK", conf(web)))
	w.wants("a 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
}

// TestGuard: a container sends to a service on the node's loopback address,
// which route_localnet would allow. A second packet to another address arrives,
// which shows that the first was dropped.
func TestGuard(t *testing.T) {
	w := newTown(t)
	a := w.run("a").publish(conf(web))
	hidden, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer hidden.Close()
	open, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 1, 0, 1)})
	must(t, err)
	defer open.Close()
	a.Do(t, func() error {
		set(t, "ipv4/conf/eth0/route_localnet", "1")
		run(t, "ip", "route", "add", "127.0.0.1", "via", "10.1.0.1", "dev", "eth0")
		return nil
	})
	sends := func() {
		t.Helper()
		for _, to := range []*net.UDPConn{hidden, open} {
			c, err := w.dial(a.NS, "udp", a.addrs[0].String(), to.LocalAddr().String())
			must(t, err)
			_, err = c.Write([]byte("hello"))
			must(t, err)
		}
		must(t, open.SetReadDeadline(await.Deadline()))
		_, err := open.Read(make([]byte, 10))
		must(t, err)
	}
	sends()
	must(t, hidden.SetReadDeadline(time.Now()))
	if _, err := hidden.Read(make([]byte, 10)); err == nil {
		t.Error("a container reached the node's 127.0.0.1")
	}
	run(t, "nft", "flush", "chain", "inet", "cnibox", "portmap_guard")
	sends()
	must(t, hidden.SetReadDeadline(await.Deadline()))
	if _, err := hidden.Read(make([]byte, 10)); err != nil {
		t.Errorf("without the guard nothing arrives either: %v", err)
	}
}

// TestOtherDestinations: a published port takes no traffic to addresses that are not the node's
// (CVE-2025-67499 of the reference's backend nftables).
func TestOtherDestinations(t *testing.T) {
	w := newTown(t)
	w.run("a").publish(conf(web))
	b := w.run("b")
	var l net.Listener
	w.outside.Do(t, func() (err error) {
		l, err = net.Listen("tcp", "192.0.2.2:8080")
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("the server outside"))
			_ = c.Close()
		}
	}()
	w.wants("the server outside", b.NS, "tcp", b.addrs[0].String(), "192.0.2.2", 8080)
	w.wants("the server outside", nil, "tcp", "", "192.0.2.2", 8080)
	// Nothing listens on this port of the container.
	w.wants("", w.outside, "tcp", "192.0.2.2", b.addrs[0].String(), 8080)
}

// TestServiceFirst: a published port takes no connection that kube-proxy translates for a Service, whose rules can be made before the
// container's or after them (CVE-2019-9946 of the reference).
func TestServiceFirst(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(map[bool]string{true: "before", false: "after"}[before], func(t *testing.T) {
			w := newTown(t)
			service := w.run("service")
			proxy := func() {
				run(t, "nft", "add table ip kube-proxy")
				t.Cleanup(func() { run(t, "nft", "delete table ip kube-proxy") })
				for _, hook := range []string{"prerouting", "output"} {
					run(t, "nft", "add chain ip kube-proxy "+hook+" { type nat hook "+hook+" priority -100 ; }")
					run(t, "nft", "add rule ip kube-proxy "+hook+" ip daddr 192.0.2.1 tcp dport 8080 dnat to "+service.addrs[0].String()+":80")
				}
			}
			if before {
				proxy()
			}
			w.run("b").publish(conf(web))
			w.wants("b 192.0.2.2", w.outside, "udp", "192.0.2.2", "192.0.2.1", 8080)
			if !before {
				w.wants("b 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
				proxy()
			}
			w.wants("service 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8080)
			w.wants("service 192.0.2.1", nil, "tcp", "192.0.2.1", "192.0.2.1", 8080)
			w.wants("b 192.0.2.2", w.outside, "udp", "192.0.2.2", "192.0.2.1", 8080)
		})
	}
}
