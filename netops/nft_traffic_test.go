package netops

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// masqueradeNet creates pod - cni0 - host - outside. It also creates near, a
// host behind another device with an address of the pods' subnet.
func masqueradeNet(t *testing.T) (pod, outside, near *nstest.Neighbour) {
	t.Helper()
	pod, outside, near = nstest.NewNeighbour(t), nstest.NewNeighbour(t), nstest.NewNeighbour(t)
	ip := func(args string) {
		t.Helper()
		nstest.Run(t, "ip", strings.Fields(args)...)
	}
	ip("link set lo up")
	ip("link add cni0 type bridge")
	ip(fmt.Sprintf("link add pod0 type veth peer name eth0 netns %d", pod.PID))
	ip(fmt.Sprintf("link add out0 type veth peer name eth0 netns %d", outside.PID))
	ip(fmt.Sprintf("link add near0 type veth peer name eth0 netns %d", near.PID))
	ip("link set pod0 master cni0")
	for _, link := range []string{"cni0", "pod0", "out0", "near0"} {
		ip("link set " + link + " up")
	}
	for _, n := range []*nstest.Neighbour{pod, outside, near} {
		n.IP(t, "link set eth0 up")
	}
	for _, a := range []string{"10.1.0.1/24 dev cni0", "192.0.2.1/24 dev out0", "fd01::1/64 dev cni0", "2001:db8::1/64 dev out0", "fe80::1/64 dev near0"} {
		ip("addr add " + a + " nodad")
	}
	pod.IP(t, "addr add 10.1.0.2/24 dev eth0")
	pod.IP(t, "addr add fd01::2/64 dev eth0 nodad")
	outside.IP(t, "addr add 192.0.2.2/24 dev eth0")
	outside.IP(t, "addr add 2001:db8::2/64 dev eth0 nodad")
	near.IP(t, "addr add 10.1.9.9/32 dev eth0")
	near.IP(t, "addr add fd01:0:0:9::9/128 dev eth0 nodad")
	ip("route add 10.1.9.9 dev near0")
	ip("-6 route add fd01:0:0:9::9 dev near0")
	near.IP(t, "route add 10.1.0.1 dev eth0")
	near.IP(t, "route add default via 10.1.0.1 dev eth0")
	near.IP(t, "-6 route add default via fe80::1 dev eth0")
	pod.IP(t, "route add default via 10.1.0.1")
	pod.IP(t, "-6 route add default via fd01::1")
	outside.IP(t, "route add 10.1.0.0/16 via 192.0.2.1")
	outside.IP(t, "-6 route add fd01::/48 via 2001:db8::1")
	nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
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
		listen := func(n *nstest.Neighbour, address string) *net.UDPConn {
			return nstest.UDP(t, n, netip.AddrPortFrom(netip.MustParseAddr(address), 5000).String())
		}
		atOutside, atNear, atPod := listen(outside, v.outside), listen(near, v.near), listen(pod, v.pod)
		want := func(what string, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %s: source %s, want %s", v.name, what, got, want)
			}
		}
		want("before", nstest.SeenSource(t, pod, v.pod, atOutside), v.pod)
		mustAdd(t, c, v.element)
		want("pod to outside", nstest.SeenSource(t, pod, v.pod, atOutside), v.node)
		want("pod to its subnet behind another device", nstest.SeenSource(t, pod, v.pod, atNear), v.pod)
		want("node itself with a pod address", nstest.SeenSource(t, nil, v.gateway, atOutside), v.gateway)
		want("outside to pod", nstest.SeenSource(t, outside, v.outside, atPod), v.outside)
		want("near to outside", nstest.SeenSource(t, near, v.near, atOutside), v.near)
		mustDel(t, c, v.element)
		want("after", nstest.SeenSource(t, pod, v.pod, atOutside), v.pod)
	}
}

// frames sends and receives frames of an experimental EtherType (IEEE 802a) on
// eth0.
type frames struct{ fd int }

const testEtherType = 0x88b5

func openFrames(t *testing.T, n *nstest.Neighbour) frames {
	t.Helper()
	network := uint16(testEtherType>>8 | testEtherType<<8&0xff00)
	var fd int
	n.In(t, func() (err error) {
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
	guarded, free, watcher := nstest.NewNeighbour(t), nstest.NewNeighbour(t), nstest.NewNeighbour(t)
	nstest.Run(t, "ip", "link", "add", "br0", "up", "type", "bridge")
	for name, n := range map[string]*nstest.Neighbour{"guarded0": guarded, "free0": free, "watcher0": watcher} {
		nstest.Run(t, "ip", strings.Fields(fmt.Sprintf("link add %s up master br0 type veth peer name eth0 netns %d", name, n.PID))...)
		n.IP(t, "link set eth0 up")
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
	// A veth keeps the order of frames. If the later frame arrives first,
	// the earlier frame was dropped.
	fromGuarded.send(t, forged, "forged")
	fromGuarded.send(t, right, "right")
	expect("right")
	fromFree.send(t, forged, "another port")
	expect("another port")

	mustDel(t, c, pair("cnibox:a", "guarded0", right), port)
	fromGuarded.send(t, forged, "forged, not guarded any more")
	expect("forged, not guarded any more")
}
