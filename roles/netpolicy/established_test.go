package netpolicy_test

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/test/await"
)

// flow is a connection: its client's and its server's end. The server's UDP end is connected to the client.
type flow struct{ client, server net.Conn }

// connect opens a connection through which both ends have sent.
func connect(t *testing.T, network string, from, to *pod, v6 bool, port int) flow {
	t.Helper()
	at := netip.AddrPortFrom(to.address(v6), uint16(port)).String()
	var f flow
	if network == "udp" {
		own := netip.AddrPortFrom(from.address(v6), uint16(port)+1000).String()
		from.ns.Do(t, func() (err error) {
			f.client, err = (&net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(own))}).Dial("udp", at)
			return err
		})
		to.ns.Do(t, func() (err error) {
			f.server, err = (&net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))}).Dial("udp", own)
			return err
		})
	} else {
		var l net.Listener
		to.ns.Do(t, func() (err error) { l, err = net.Listen("tcp", at); return err })
		from.ns.Do(t, func() (err error) { f.client, err = net.DialTimeout("tcp", at, await.Patience); return err })
		var err error
		if f.server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	t.Cleanup(func() { _ = f.client.Close(); _ = f.server.Close() })
	f.passes(t, f.client, f.server)
	f.passes(t, f.server, f.client)
	return f
}

func send(t *testing.T, from net.Conn, text string) {
	t.Helper()
	if _, err := from.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// received returns what has arrived, without waiting.
func received(t *testing.T, at net.Conn) (text string) {
	t.Helper()
	raw, err := at.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		b := make([]byte, 100)
		if n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err == nil {
			text = string(b[:n])
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// passes sends a text and waits for it.
func (f flow) passes(t *testing.T, from, to net.Conn) {
	t.Helper()
	send(t, from, "hello")
	_ = to.SetReadDeadline(await.Deadline())
	b := make([]byte, 100)
	if n, err := to.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Fatalf("received %q, %v", b[:n], err)
	}
}

// TestEstablished: a policy that begins to forbid a connection stops both of its directions, also if the server sends first,
// and also after that. With KeepEstablished it goes on. What does not arrive would have arrived before a marker that
// follows on the same way through a connection that stays allowed.
func TestEstablished(t *testing.T) {
	forwarding(t)
	for i, network := range []string{"udp", "tcp"} {
		for j, v6 := range []bool{false, true} {
			for k, keep := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, IPv6 %v, keep %v", network, v6, keep), func(t *testing.T) {
					f, table := openFilter(t), netpolicy.NewTable()
					table.KeepEstablished = keep
					pods := twoPods(t, table, 10*(4*i+2*j+k+1))
					ensure(t, f, table)
					client, server := pods[0], pods[1]
					stopped, marker := connect(t, network, client, server, v6, 80), connect(t, network, client, server, v6, 81)
					put(t, table, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{
						"podSelector":{"matchLabels":{"n":"1"}},"ingress":[{"ports":[{"port":81,"protocol":"%s"}]}]}}`, map[string]string{"udp": "UDP", "tcp": "TCP"}[network]))
					ensure(t, f, table)
					for range 3 {
						for _, d := range [][4]net.Conn{
							{stopped.server, stopped.client, marker.server, marker.client}, {stopped.client, stopped.server, marker.client, marker.server},
						} {
							if keep {
								stopped.passes(t, d[0], d[1])
								continue
							}
							send(t, d[0], "forbidden")
							marker.passes(t, d[2], d[3])
							if text := received(t, d[1]); text != "" {
								t.Fatalf("received %q", text)
							}
						}
					}
				})
			}
		}
	}
}

// twoPods makes pods with the labels n=0 and n=1.
func twoPods(t *testing.T, table *netpolicy.Table, host int) (pods []*pod) {
	t.Helper()
	for n := range 2 {
		p := routed(t, n, netpolicy.Pod{
			Namespace: "default", Name: fmt.Sprint("p", n), UID: fmt.Sprint(n), Labels: map[string]string{"n": fmt.Sprint(n)},
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.8.0.%d", host+n)), netip.MustParseAddr(fmt.Sprintf("fd08::%d", host+n))},
		})
		one := p.Pod
		table.PutPod(&one)
		pods = append(pods, p)
	}
	locals(table)
	return pods
}

// TestForgotten: a forbidden connection stays stopped after its entry in conntrack is deleted, whichever end sends first. An allowed one goes on
// when its client sends.
func TestForgotten(t *testing.T) {
	forwarding(t)
	addresses := []netip.Addr{netip.MustParseAddr("10.8.202.1"), netip.MustParseAddr("fd08:202::1")}
	for _, a := range addresses {
		ip(t, fmt.Sprintf("addr add %s/%d dev lo", a, a.BitLen()))
	}
	node := &pod{netpolicy.Pod{Addresses: addresses}, netopstest.At("/proc/self/ns/net")}
	const only81 = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{%s}}`
	for i, c := range []struct{ name, policy string }{
		{"ingress", fmt.Sprintf(only81, `"podSelector":{"matchLabels":{"n":"1"}},"ingress":[{"ports":[{"port":81}]}]`)},
		{"egress", fmt.Sprintf(only81, `"podSelector":{"matchLabels":{"n":"0"}},"policyTypes":["Egress"],"egress":[{"ports":[{"port":81}]}]`)},
		{"node", toNodes("Admin", 1, "Deny", `{"networks":["0.0.0.0/0","::/0"]}`)},
	} {
		for j, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 %v", c.name, v6), func(t *testing.T) {
				f, table := openFilter(t), netpolicy.NewTable()
				put(t, table, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}`)
				pods := twoPods(t, table, 100+20*i+10*j)
				if c.name == "node" {
					pods[1] = node
				}
				ensure(t, f, table)
				stopped, marker := connect(t, "tcp", pods[0], pods[1], v6, 80), connect(t, "tcp", pods[0], pods[1], v6, 81)
				if c.name == "node" {
					putCluster(t, table, c.policy)
				} else {
					put(t, table, c.policy)
				}
				ensure(t, f, table)
				for range 3 {
					for _, d := range [][2]net.Conn{{stopped.server, stopped.client}, {stopped.client, stopped.server}} {
						if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
							t.Fatal(err)
						}
						send(t, d[0], "forbidden")
						marker.passes(t, marker.client, marker.server)
						marker.passes(t, marker.server, marker.client)
						if text := received(t, d[1]); text != "" {
							t.Fatalf("received %q", text)
						}
					}
				}
			})
		}
	}
}
