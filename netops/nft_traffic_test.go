package netops

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/test/await"
)

// neighbour is a network namespace beside the test's own, held by a process.
type neighbour struct{ pid int }

func newNeighbour(t *testing.T) *neighbour {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	// The process ends with the thread that starts it, so that one must not end
	// before (those that enter a neighbour do).
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		started <- cmd.Start()
		<-done
		runtime.UnlockOSThread()
	}()
	t.Cleanup(func() { close(done) })
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &neighbour{cmd.Process.Pid}
}

// ip runs iproute2 in the neighbour.
func (n *neighbour) ip(t *testing.T, args string) {
	t.Helper()
	run(t, "nsenter", append([]string{"-t", strconv.Itoa(n.pid), "-n", "ip"}, strings.Fields(args)...)...)
}

// in calls f on a thread in the neighbour; sockets that f opens stay there.
func (n *neighbour) in(t *testing.T, f func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with f
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.pid))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// udp opens a UDP socket in the neighbour, or with nil in the test's namespace.
func udp(t *testing.T, n *neighbour, local string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	open := func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local)))
		return err
	}
	if n == nil {
		if err := open(); err != nil {
			t.Fatal(err)
		}
	} else {
		n.in(t, open)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(await.Deadline()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// seenSource sends a datagram from a new socket and gives the source address
// that the receiver sees.
func seenSource(t *testing.T, from *neighbour, source string, to *net.UDPConn) string {
	t.Helper()
	conn := udp(t, from, netip.AddrPortFrom(netip.MustParseAddr(source), 0).String())
	if _, err := conn.WriteTo([]byte(source), to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, seen, err := to.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != source {
		t.Fatalf("receive from %s: %q, %v", source, b[:n], err)
	}
	return seen.Addr().String()
}

// masqueradeNet is pod - cni0 - host - outside, and near: a host behind another
// device that has an address of the pods' subnet.
func masqueradeNet(t *testing.T) (pod, outside, near *neighbour) {
	t.Helper()
	pod, outside, near = newNeighbour(t), newNeighbour(t), newNeighbour(t)
	ip := func(args string) {
		t.Helper()
		run(t, "ip", strings.Fields(args)...)
	}
	ip("link set lo up")
	ip("link add cni0 type bridge")
	ip(fmt.Sprintf("link add pod0 type veth peer name eth0 netns %d", pod.pid))
	ip(fmt.Sprintf("link add out0 type veth peer name eth0 netns %d", outside.pid))
	ip(fmt.Sprintf("link add near0 type veth peer name eth0 netns %d", near.pid))
	ip("link set pod0 master cni0")
	for _, link := range []string{"cni0", "pod0", "out0", "near0"} {
		ip("link set " + link + " up")
	}
	for _, n := range []*neighbour{pod, outside, near} {
		n.ip(t, "link set eth0 up")
	}
	for _, a := range []string{"10.1.0.1/24 dev cni0", "192.0.2.1/24 dev out0", "fd01::1/64 dev cni0", "2001:db8::1/64 dev out0", "fe80::1/64 dev near0"} {
		ip("addr add " + a + " nodad")
	}
	pod.ip(t, "addr add 10.1.0.2/24 dev eth0")
	pod.ip(t, "addr add fd01::2/64 dev eth0 nodad")
	outside.ip(t, "addr add 192.0.2.2/24 dev eth0")
	outside.ip(t, "addr add 2001:db8::2/64 dev eth0 nodad")
	near.ip(t, "addr add 10.1.9.9/32 dev eth0")
	near.ip(t, "addr add fd01:0:0:9::9/128 dev eth0 nodad")
	ip("route add 10.1.9.9 dev near0")
	ip("-6 route add fd01:0:0:9::9 dev near0")
	near.ip(t, "route add 10.1.0.1 dev eth0")
	near.ip(t, "route add default via 10.1.0.1 dev eth0")
	near.ip(t, "-6 route add default via fe80::1 dev eth0")
	pod.ip(t, "route add default via 10.1.0.1")
	pod.ip(t, "-6 route add default via fd01::1")
	outside.ip(t, "route add 10.1.0.0/16 via 192.0.2.1")
	outside.ip(t, "-6 route add fd01::/48 via 2001:db8::1")
	run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	return pod, outside, near
}

func TestNFTMasqueradesRealTraffic(t *testing.T) {
	c := freshNFT(t)
	pod, outside, near := masqueradeNet(t)
	for _, v := range []struct {
		name                              string
		element                           *nft.Element
		pod, gateway, node, outside, near string
	}{
		{
			"IPv4", masq("net", "cni0", "10.1.0.0/16"),
			"10.1.0.2", "10.1.0.1", "192.0.2.1", "192.0.2.2", "10.1.9.9",
		},
		{
			"IPv6", &nft.Element{Shared: true, Set: "masq6", Key: []string{"cni0", "fd01::/48"}, Label: "net"},
			"fd01::2", "fd01::1", "2001:db8::1", "2001:db8::2", "fd01:0:0:9::9",
		},
	} {
		listen := func(n *neighbour, address string) *net.UDPConn {
			return udp(t, n, netip.AddrPortFrom(netip.MustParseAddr(address), 5000).String())
		}
		atOutside, atNear, atPod := listen(outside, v.outside), listen(near, v.near), listen(pod, v.pod)
		want := func(what string, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %s: source %s, want %s", v.name, what, got, want)
			}
		}
		want("before", seenSource(t, pod, v.pod, atOutside), v.pod)
		mustAdd(t, c, v.element)
		want("pod to outside", seenSource(t, pod, v.pod, atOutside), v.node)
		want("pod to its subnet behind another device", seenSource(t, pod, v.pod, atNear), v.pod)
		want("node itself with a pod address", seenSource(t, nil, v.gateway, atOutside), v.gateway)
		want("outside to pod", seenSource(t, outside, v.outside, atPod), v.outside)
		want("near to outside", seenSource(t, near, v.near, atOutside), v.near)
		mustDel(t, c, v.element)
		want("after", seenSource(t, pod, v.pod, atOutside), v.pod)
	}
}

// frames sends and receives frames of an experimental EtherType (IEEE 802a) on eth0.
type frames struct{ fd int }

const testEtherType = 0x88b5

func openFrames(t *testing.T, n *neighbour) frames {
	t.Helper()
	network := uint16(testEtherType>>8 | testEtherType<<8&0xff00)
	var fd int
	n.in(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(network))
		if err != nil {
			return err
		}
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: link.Index})
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	return frames{fd}
}

func (f frames) send(t *testing.T, source, text string) {
	t.Helper()
	mac, err := net.ParseMAC(source)
	if err != nil {
		t.Fatal(err)
	}
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...)
	b = append(b, testEtherType>>8, testEtherType&0xff, byte(len(text)))
	b = append(b, text...)
	if _, err := unix.Write(f.fd, b); err != nil {
		t.Fatal(err)
	}
}

func (f frames) receive(t *testing.T) string {
	t.Helper()
	b := make([]byte, 200)
	n, err := unix.Read(f.fd, b)
	if err != nil || n < 15 || n < 15+int(b[14]) {
		t.Fatalf("receive frame: %d bytes, %v", n, err)
	}
	return string(b[15 : 15+int(b[14])])
}

func TestNFTGuardDropsForgedFrames(t *testing.T) {
	c := freshNFT(t)
	guarded, free, watcher := newNeighbour(t), newNeighbour(t), newNeighbour(t)
	run(t, "ip", "link", "add", "br0", "up", "type", "bridge")
	for name, n := range map[string]*neighbour{"guarded0": guarded, "free0": free, "watcher0": watcher} {
		run(t, "ip", strings.Fields(fmt.Sprintf("link add %s up master br0 type veth peer name eth0 netns %d", name, n.pid))...)
		n.ip(t, "link set eth0 up")
	}
	fromGuarded, fromFree, seen := openFrames(t, guarded), openFrames(t, free), openFrames(t, watcher)
	const right, forged = "02:00:00:00:00:01", "02:00:00:00:00:99"
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if got := seen.receive(t); got != w {
				t.Errorf("seen %q, want %q", got, w)
			}
		}
	}
	fromGuarded.send(t, forged, "forged, not guarded yet")
	expect("forged, not guarded yet")

	port := &nft.Element{Set: "macguard_ports", Key: []string{"guarded0"}, Label: "cnibox:a"}
	mustAdd(t, c, pair("cnibox:a", "guarded0", right), port)
	// A veth keeps the order: what is seen next shows that the frames before it were dropped.
	fromGuarded.send(t, forged, "forged")
	fromGuarded.send(t, right, "right")
	expect("right")
	fromFree.send(t, forged, "another port")
	expect("another port")

	mustDel(t, c, pair("cnibox:a", "guarded0", right), port)
	fromGuarded.send(t, forged, "forged, not guarded any more")
	expect("forged, not guarded any more")
}
