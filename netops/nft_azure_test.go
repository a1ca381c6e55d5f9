package netops

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// The MAC addresses on the fabric: the uplink's, the pods', and the one with
// which Azure's network answers every ARP request.
const (
	uplinkMAC = "02:00:00:00:00:04"
	podAMAC   = "02:00:00:00:00:0a"
	podBMAC   = "02:00:00:00:00:0b"
	fabricMAC = "12:34:56:78:9a:bc"
)

// macNATNet creates pods a and b on a bridge with an uplink to the fabric.
func macNATNet(t *testing.T) (fabric, a, b *nstest.Neighbour) {
	t.Helper()
	fabric, a, b = nstest.NewNeighbour(t), nstest.NewNeighbour(t), nstest.NewNeighbour(t)
	ip := func(args string) {
		t.Helper()
		nstest.Run(t, "ip", strings.Fields(args)...)
	}
	ip("link set lo up")
	ip("link add azure0 address " + uplinkMAC + " type bridge mcast_snooping 0")
	t.Cleanup(func() {
		for _, l := range []string{"azure0", "up0", "azva", "azvb"} {
			_ = exec.Command("ip", "link", "del", l).Run()
		}
	})
	nstest.Run(t, "sysctl", "-qw", "net.ipv6.conf.azure0.accept_dad=0", "net.ipv6.conf.azure0.accept_ra=0")
	for link, n := range map[string]*nstest.Neighbour{"up0": fabric, "azva": a, "azvb": b} {
		mac := map[string]string{"up0": fabricMAC, "azva": podAMAC, "azvb": podBMAC}[link]
		ip(fmt.Sprintf("link add %s master azure0 type veth peer name eth0 address %s netns %d", link, mac, n.PID))
		nstest.Run(t, "sysctl", "-qw", "net.ipv6.conf."+link+".disable_ipv6=1")
		nstest.Run(t, "nsenter", "-t", fmt.Sprint(n.PID), "-n", "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0", "net.ipv6.conf.eth0.router_solicitations=0")
		n.IP(t, "link set eth0 up")
		n.IP(t, "link set lo up")
	}
	ip("link set up0 address " + uplinkMAC)
	for _, l := range []string{"azure0", "up0", "azva", "azvb"} {
		ip("link set " + l + " up")
	}
	ip("addr add 10.240.0.4/16 dev azure0")
	ip("addr add fd00:240::4/64 dev azure0 nodad")
	for n, host := range map[*nstest.Neighbour]string{fabric: "1", a: "10", b: "11"} {
		n.IP(t, "addr add 10.240.0."+host+"/16 dev eth0")
		n.IP(t, "addr add fd00:240::"+host+"/64 dev eth0 nodad")
		if n != fabric {
			n.IP(t, "route add default via 10.240.0.1")
		}
	}
	return fabric, a, b
}

// macNAT returns the nftables elements for that network.
func macNAT() []*nft.Element {
	pod := func(set, ip, mac string) *nft.Element {
		return &nft.Element{Set: set, Key: []string{"up0", ip}, Value: []string{mac}, Label: "cnibox:" + mac}
	}
	return []*nft.Element{
		{Shared: true, Set: "macnat_uplinks", Key: []string{"up0"}, Value: []string{uplinkMAC}, Label: "cnibox:shared"},
		pod("macnat_pods4", "10.240.0.10", podAMAC), pod("macnat_pods4", "10.240.0.11", podBMAC),
		pod("macnat_pods6", "fd00:240::10", podAMAC), pod("macnat_pods6", "fd00:240::11", podBMAC),
	}
}

// capture receives all frames that arrive on a neighbour's eth0.
type capture struct {
	frames
	pid int
}

func openCapture(t *testing.T, n *nstest.Neighbour) capture {
	t.Helper()
	all := uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00)
	var fd int
	n.In(t, func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	return capture{frames{fd}, n.PID}
}

// until returns, as text, the frames that arrive before a frame with the text
// mark. It includes ARP frames, and UDP frames with their MAC addresses.
func (c capture) until(t *testing.T, mark string) []string {
	t.Helper()
	var seen []string
	b := make([]byte, 2000)
	for {
		n, from, err := unix.Recvfrom(c.fd, b, 0)
		if err != nil {
			t.Fatalf("capture: %v, seen so far: %q", err, seen)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 42 && n < 15 {
			continue
		}
		f := b[:n]
		to, source := net.HardwareAddr(f[:6]), net.HardwareAddr(f[6:12])
		switch kind := uint16(f[12])<<8 | uint16(f[13]); {
		case kind == testEtherType && string(f[15:15+int(f[14])]) == mark:
			return seen
		case kind == unix.ETH_P_ARP && n >= 42:
			target, _ := netip.AddrFromSlice(f[38:42])
			seen = append(seen, fmt.Sprintf("arp %d %s > %s sender %s target %s %s", f[21], source, to, net.HardwareAddr(f[22:28]), net.HardwareAddr(f[32:38]), target))
		case kind == unix.ETH_P_IP && f[23] == unix.IPPROTO_UDP:
			dst, _ := netip.AddrFromSlice(f[30:34])
			seen = append(seen, fmt.Sprintf("udp %s > %s to %s ttl %d", source, to, dst, f[22]))
		}
	}
}

// askARP broadcasts an ARP request from the fabric.
func (c capture) askARP(t *testing.T, source, from, target string) {
	t.Helper()
	mac, err := net.ParseMAC(source)
	if err != nil {
		t.Fatal(err)
	}
	b := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1 /* a request */}, mac,
		netip.MustParseAddr(from).AsSlice(), make([]byte, 6), netip.MustParseAddr(target).AsSlice())
	if _, err := unix.Write(c.fd, b); err != nil {
		t.Fatal(err)
	}
}

// answered waits until c received the ARP answer, and then for a frame of the
// pod.
func (c capture) answered(t *testing.T, pod frames, source string) []string {
	t.Helper()
	var seen []string
	for !slices.ContainsFunc(seen, func(s string) bool { return strings.HasPrefix(s, "arp 2") }) {
		pod.send(t, source, "more")
		seen = append(seen, c.until(t, "more")...)
	}
	pod.send(t, source, "end")
	return append(seen, c.until(t, "end")...)
}

// TestMACNATAnswersForPods sends an ARP request for a pod from the fabric. Only
// that pod receives it, and there is one answer, with the uplink's MAC address.
func TestMACNATAnswersForPods(t *testing.T) {
	c := freshNFT(t)
	fabric, a, b := macNATNet(t)
	atFabric, atB, fromB := openCapture(t, fabric), openCapture(t, b), openFrames(t, b)
	fromFabric := openFrames(t, fabric)
	mustAdd(t, c, macNAT()...)
	atFabric.askARP(t, fabricMAC, "10.240.0.1", "10.240.0.10")
	want := []string{"arp 2 " + uplinkMAC + " > " + fabricMAC + " sender " + uplinkMAC + " target " + fabricMAC + " 10.240.0.1"}
	if seen := atFabric.answered(t, fromB, podBMAC); !slices.Equal(seen, want) {
		t.Errorf("the fabric sees %q, want %q", seen, want)
	}
	fromFabric.send(t, fabricMAC, "end")
	if seen := atB.until(t, "end"); len(seen) != 0 {
		t.Errorf("pod b sees %q", seen)
	}
	// An uplink with hairpin must not send a broadcast back to the fabric.
	nstest.Run(t, "bridge", "link", "set", "dev", "up0", "hairpin", "on")
	atFabric.askARP(t, fabricMAC, "10.240.0.1", "10.240.9.9")
	fromFabric.send(t, fabricMAC, "there")
	atB.until(t, "there")
	fromB.send(t, podBMAC, "end2")
	if seen := atFabric.until(t, "end2"); len(seen) != 0 {
		t.Errorf("with hairpin the fabric sees %q", seen)
	}
	nstest.Run(t, "bridge", "link", "set", "dev", "up0", "hairpin", "off")
	// ARP between pods stays on the bridge.
	a.IP(t, "neigh flush dev eth0")
	conn := nstest.UDP(t, b, "10.240.0.11:5000")
	if got := nstest.SeenSource(t, a, "10.240.0.10", conn); got != "10.240.0.10" {
		t.Errorf("source %s", got)
	}
	fromB.send(t, podBMAC, "between")
	if seen := atFabric.until(t, "between"); len(seen) != 0 {
		t.Errorf("the fabric sees %q of what is between pods", seen)
	}
}

// TestMACNATCarriesTraffic checks traffic between pods, the node and the fabric.
// The fabric accepts the uplink's MAC address only.
func TestMACNATCarriesTraffic(t *testing.T) {
	c := freshNFT(t)
	fabric, a, _ := macNATNet(t)
	mustAdd(t, c, macNAT()...)
	type end struct {
		n    *nstest.Neighbour
		addr string
	}
	for _, ends := range [][]end{
		{{fabric, "10.240.0.1"}, {a, "10.240.0.10"}, {nil, "10.240.0.4"}},
		{{fabric, "fd00:240::1"}, {a, "fd00:240::10"}, {nil, "fd00:240::4"}},
	} {
		for _, to := range ends {
			conn := nstest.UDP(t, to.n, netip.AddrPortFrom(netip.MustParseAddr(to.addr), 5000).String())
			for _, from := range ends {
				if got := nstest.SeenSource(t, from.n, from.addr, conn); got != from.addr {
					t.Errorf("from %s to %s: source %s", from.addr, to.addr, got)
				}
			}
		}
	}
	neighs := nstest.Run(t, "nsenter", "-t", fmt.Sprint(fabric.PID), "-n", "ip", "neigh", "show", "dev", "eth0")
	for line := range strings.Lines(neighs) {
		if strings.Contains(line, "lladdr") && !strings.Contains(line, uplinkMAC) {
			t.Errorf("the fabric learnt another MAC than the uplink's: %s", line)
		}
	}
	for _, ip := range []string{"10.240.0.10", "fd00:240::10"} {
		if !strings.Contains(neighs, ip+" lladdr "+uplinkMAC) {
			t.Errorf("the fabric has no neighbour %s:\n%s", ip, neighs)
		}
	}
}

// TestMACNATTunnel sends the traffic between two pods of one node through the
// fabric.
func TestMACNATTunnel(t *testing.T) {
	c := freshNFT(t)
	fabric, a, b := macNATNet(t)
	nstest.Run(t, "nsenter", "-t", fmt.Sprint(fabric.PID), "-n", "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.eth0.send_redirects=0")
	nstest.Run(t, "bridge", "fdb", "replace", fabricMAC, "dev", "up0", "master", "static")
	tunnel := []*nft.Element{
		{Set: "macnat_tunnel", Key: []string{"azva"}, Value: []string{fabricMAC}, Label: "cnibox:a"},
		{Set: "macnat_tunnel", Key: []string{"azvb"}, Value: []string{fabricMAC}, Label: "cnibox:b"},
	}
	mustAdd(t, c, append(macNAT(), tunnel...)...)
	atB, atFabric, fromB := openCapture(t, b), openCapture(t, fabric), openFrames(t, b)
	conn := nstest.UDP(t, b, "10.240.0.11:5000")
	send := func() {
		t.Helper()
		if got := nstest.SeenSource(t, a, "10.240.0.10", conn); got != "10.240.0.10" {
			t.Errorf("source %s", got)
		}
		fromB.send(t, podBMAC, "end")
	}
	send()
	want := "udp " + uplinkMAC + " > " + fabricMAC + " to 10.240.0.11 ttl 64"
	if seen := atFabric.until(t, "end"); !slices.Contains(seen, want) {
		t.Errorf("the fabric sees %q, want %q", seen, want)
	}
	fromFabric := openFrames(t, fabric)
	fromFabric.send(t, fabricMAC, "end")
	want = "udp " + fabricMAC + " > " + podBMAC + " to 10.240.0.11 ttl 63"
	if seen := atB.until(t, "end"); !slices.Contains(seen, want) {
		t.Errorf("pod b sees %q, want %q", seen, want)
	}
	mustDel(t, c, tunnel...)
	send()
	if seen := atFabric.until(t, "end"); slices.ContainsFunc(seen, func(s string) bool { return strings.HasPrefix(s, "udp") }) {
		t.Errorf("without the elements the fabric sees %q", seen)
	}
}

// TestMACNATRedirect delivers packets to the node for an address that the node
// has and that the pods route to the fabric.
func TestMACNATRedirect(t *testing.T) {
	c := freshNFT(t)
	fabric, a, _ := macNATNet(t)
	nstest.Run(t, "ip", "addr", "add", "169.254.20.10/32", "dev", "azure0")
	redirect := &nft.Element{Set: "macnat_node4", Key: []string{"169.254.20.10"}, Value: []string{uplinkMAC}, Label: "cnibox:a"}
	mustAdd(t, c, append(macNAT(), redirect)...)
	atFabric := openCapture(t, fabric)
	fromA := openFrames(t, a)
	conn := nstest.UDP(t, nil, "169.254.20.10:53")
	if got := nstest.SeenSource(t, a, "10.240.0.10", conn); got != "10.240.0.10" {
		t.Errorf("source %s", got)
	}
	_ = conn.Close()
	fromA.send(t, podAMAC, "end")
	for _, seen := range atFabric.until(t, "end") {
		if strings.HasPrefix(seen, "udp") {
			t.Errorf("the fabric sees %s", seen)
		}
	}
	mustDel(t, c, redirect)
}

// TestNeighSuppress makes the bridge answer ARP requests for a pod. With a
// permanent neighbour, a static forwarding entry and the flag at the pod's port
// there is one answer, and no pod receives the request. The answer has the pod's
// MAC address, because it passes no hook of the bridge family. If a fabric
// accepts the uplink's MAC address only, macNATFeature must answer instead.
func TestNeighSuppress(t *testing.T) {
	ctx := t.Context()
	freshNFT(t)
	fabric, a, b := macNATNet(t)
	on := true
	n := New(Options{})
	t.Cleanup(func() { _ = n.Close() })
	spec := Spec{Objects: []Object{
		&Link{In: Host, Name: "azva", Port: &Port{NeighSuppress: &on}},
		&Link{In: Host, Name: "azvb", Port: &Port{NeighSuppress: &on}},
		&Neigh{In: Host, Link: "azure0", IP: netip.MustParseAddr("10.240.0.10"), MAC: podAMAC},
		&Neigh{In: Host, Link: "azva", MAC: podAMAC, FDB: true},
	}}
	plan, err := n.Plan(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Apply(ctx, plan, nil); err != nil {
		t.Fatal(err)
	}
	if d, err := n.Verify(ctx, spec, nil); err != nil || len(d) != 0 {
		t.Errorf("Verify: %v, %v", d, err)
	}
	atFabric, atA, atB, fromB := openCapture(t, fabric), openCapture(t, a), openCapture(t, b), openFrames(t, b)
	atFabric.askARP(t, fabricMAC, "10.240.0.1", "10.240.0.10")
	want := []string{"arp 2 " + podAMAC + " > " + fabricMAC + " sender " + podAMAC + " target " + fabricMAC + " 10.240.0.1"}
	if seen := atFabric.answered(t, fromB, podBMAC); !slices.Equal(seen, want) {
		t.Errorf("the fabric sees %q, want %q", seen, want)
	}
	openFrames(t, fabric).send(t, fabricMAC, "end")
	for name, at := range map[string]capture{"a": atA, "b": atB} {
		if seen := at.until(t, "end"); len(seen) != 0 {
			t.Errorf("pod %s sees %q", name, seen)
		}
	}
	nstest.Run(t, "bridge", "link", "set", "dev", "azva", "neigh_suppress", "off")
	if d, err := n.Verify(ctx, spec, nil); err != nil || len(d) != 1 || d[0].Want != "neigh_suppress on" {
		t.Errorf("Verify after tampering: %v, %v", d, err)
	}
	if err := n.Undo(ctx, plan.Changes, nil); err != nil {
		t.Fatal(err)
	}
	if out := nstest.Run(t, "bridge", "-d", "link", "show", "dev", "azvb"); !strings.Contains(out, "neigh_suppress off") {
		t.Errorf("after Undo: %s", out)
	}
}
