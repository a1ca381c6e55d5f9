package netopstest

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// Place is the namespace of a socket: a container's, or the host's for nil.
type Place interface {
	Do(t testing.TB, f func() error)
}

// Listen opens a UDP socket that is closed at the end of the test.
func Listen(t testing.TB, in Place, at string) *net.UDPConn {
	t.Helper()
	addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
	var conn *net.UDPConn
	open := func() (err error) {
		conn, err = net.ListenUDP("udp", addr)
		return err
	}
	if in != nil {
		in.Do(t, open)
	} else if err := open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(await.Deadline()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// CheckDatagram checks that a datagram arrives with the given source address and that an
// answer returns.
func CheckDatagram(t testing.TB, what string, from Place, to *net.UDPConn, source string) {
	t.Helper()
	CheckDatagramVia(t, what, from, to.LocalAddr().String(), to, source)
}

// CheckDatagramVia is like CheckDatagram, but sends to the address by, which is translated or
// routed to the socket. The answer must come from that address.
func CheckDatagramVia(t testing.TB, what string, from Place, by string, to *net.UDPConn, source string) {
	t.Helper()
	bind, target := "0.0.0.0:0", netip.MustParseAddrPort(by)
	if target.Addr().Is6() {
		bind = "[::]:0"
	}
	conn := Listen(t, from, bind)
	if _, err := conn.WriteToUDPAddrPort([]byte(what), target); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	b := make([]byte, 200)
	n, seen, err := to.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != what {
		t.Fatalf("%s: received %q, %v", what, b[:n], err)
	}
	if seen.Addr().Unmap() != netip.MustParseAddr(source) {
		t.Errorf("%s: source is %s, want %s", what, seen.Addr(), source)
	}
	if _, err := to.WriteToUDPAddrPort([]byte("answer"), seen); err != nil {
		t.Fatalf("%s: answer: %v", what, err)
	}
	n, answers, err := conn.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != "answer" {
		t.Fatalf("%s: answered %q, %v", what, b[:n], err)
	}
	if have := netip.AddrPortFrom(answers.Addr().Unmap(), answers.Port()); have != target {
		t.Errorf("%s: the answer is from %s, want %s", what, have, target)
	}
}

// LinkUp adds addresses to a link of the calling thread's namespace and sets it
// up. The addresses are usable at once.
func LinkUp(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0); err != nil {
		return err
	}
	for _, a := range addrs {
		parsed, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		parsed.Flags |= unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, parsed); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}
