package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestListeners lists sockets of all kinds.
func TestListeners(t *testing.T) {
	nstest.Fresh(t)
	nstest.Run(t, "ip", "link", "set", "lo", "up")
	dual := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_V6ONLY, 0) })
		if err != nil {
			return err
		}
		return failed
	}}
	listen := func(network, address string, c net.ListenConfig) {
		t.Helper()
		if strings.HasPrefix(network, "udp") {
			l, err := c.ListenPacket(context.Background(), network, address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			return
		}
		l, err := c.Listen(context.Background(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	listen("tcp4", "0.0.0.0:8000", net.ListenConfig{})
	listen("tcp4", "127.0.0.1:8001", net.ListenConfig{})
	listen("tcp6", "[::]:8002", dual)
	listen("tcp6", "[::]:8003", net.ListenConfig{})
	listen("tcp6", "[::1]:8004", net.ListenConfig{})
	listen("udp4", "0.0.0.0:8000", net.ListenConfig{})
	listen("udp6", "[::]:8005", dual)
	for i := range 20 {
		listen("tcp4", fmt.Sprintf("0.0.0.0:%d", 9000+i), net.ListenConfig{})
	}
	client, err := net.Dial("udp4", "127.0.0.1:8000") // a connected socket is no listener
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	own := netip.MustParseAddrPort(client.LocalAddr().String()).Port()
	asking := unboundPort(t, unix.AF_INET)
	asking6 := unboundPort(t, unix.AF_INET6)
	listen("udp4", fmt.Sprintf("127.0.0.2:%d", asking), net.ListenConfig{Control: reusable}) // beside the client
	accepted := connection(t, "127.0.0.1:8001")

	for _, v := range []struct {
		name  string
		ports []PortRange
		want  []string
	}{
		{"one", []PortRange{{"tcp", 8000, 8000}}, []string{"tcp 0.0.0.0:8000 false"}},
		{"a range", []PortRange{{"tcp", 7999, 8004}}, []string{
			"tcp 0.0.0.0:8000 false", "tcp 127.0.0.1:8001 false", "tcp [::1]:8004 false", "tcp [::]:8002 true", "tcp [::]:8003 false",
		}},
		{"several", []PortRange{{"tcp", 1, 1}, {"tcp", 8001, 8001}, {"udp", 8000, 8000}, {"tcp", 8003, 8010}, {"udp", 8005, 8005}}, []string{
			"tcp 127.0.0.1:8001 false", "tcp [::1]:8004 false", "tcp [::]:8003 false", "udp 0.0.0.0:8000 false", "udp [::]:8005 true",
		}},
		{"none", []PortRange{{"tcp", 8100, 8999}, {"udp", 8001, 8004}, {"sctp", 1, 65535}, {"udp", own, own}, {"udp", asking6, asking6}, {"tcp", accepted, accepted}}, nil},
		{"beside a client", []PortRange{{"udp", asking, asking}, {"tcp", 8001, 8001}}, []string{"tcp 127.0.0.1:8001 false", fmt.Sprintf("udp 127.0.0.2:%d false", asking)}},
		{"a client in a range", []PortRange{{"udp", 1024, 65535}}, []string{"udp 0.0.0.0:8000 false", fmt.Sprintf("udp 127.0.0.2:%d false", asking), "udp [::]:8005 true"}},
	} {
		have, err := Listeners(t.Context(), v.ports)
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, l := range have {
			texts = append(texts, fmt.Sprintf("%s %s %t", l.Proto, netip.AddrPortFrom(l.Addr, l.Port), l.Dual))
			if p := Processes([]Listener{l})[0]; len(p) != 1 || p[0].PID != unix.Getpid() || p[0].Name == "" || len(p[0].Args) == 0 {
				t.Errorf("%v is open in %+v", l, p)
			}
		}
		slices.Sort(texts)
		if !slices.Equal(texts, v.want) {
			t.Errorf("%s: have %q, want %q", v.name, texts, v.want)
		}
	}
	many := make([]PortRange, 10_000) // more than one filter can hold
	for i := range many {
		many[i] = PortRange{"tcp", uint16(2*i + 1), uint16(2*i + 1)}
	}
	if have, err := Listeners(t.Context(), many); err != nil || len(have) != 12 {
		t.Errorf("%d listeners at the odd ports, %v, want 12", len(have), err)
	}
}

// reusable lets a socket bind to a port that another one has.
func reusable(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	return errors.Join(err, failed)
}

// unboundPort returns the port that the kernel gave to a socket that sent a packet and did not bind, as DNS clients do.
func unboundPort(t *testing.T, family int) uint16 {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 8000}
	if family == unix.AF_INET6 {
		to = &unix.SockaddrInet6{Addr: [16]byte{15: 1}, Port: 8005}
	}
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Sendto(fd, []byte("q"), 0, to)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if at, ok := name.(*unix.SockaddrInet6); ok {
		return uint16(at.Port)
	}
	return uint16(name.(*unix.SockaddrInet4).Port) //nolint:forcetypeassert // the family's
}

// connection opens a TCP connection and returns the client's port.
func connection(t *testing.T, to string) uint16 {
	t.Helper()
	c, err := net.Dial("tcp4", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return netip.MustParseAddrPort(c.LocalAddr().String()).Port()
}
