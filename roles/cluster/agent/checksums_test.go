package agent_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// breakInterface replaces the node's interface by one whose hardware does not complete the checksums of packets within
// VXLAN, though its driver says so. It completes other checksums.
func (n *node) breakInterface() {
	t := n.w.t
	t.Helper()
	n.ip("link del eth1")
	ip(t, "link add nic type veth peer name eth1 netns "+n.ns.Path())
	ip(t, "link add wire type veth peer name port0")
	ip(t, "link set port0 master fabric")
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", "nic").Run()
		_ = exec.Command("ip", "link", "del", "wire").Run()
	})
	for _, link := range []string{"nic", "wire", "port0"} {
		ip(t, "link set "+link+" up")
	}
	nic, wire := packetSocket(t, "nic"), packetSocket(t, "wire")
	go pump(nic, wire, 14+40+8) // an outer header of IPv6 and UDP ends here, and an inner UDP header begins later
	go pump(wire, nic, 1<<16)
	n.connect()
}

// vnetHeader is the size of struct virtio_net_hdr, which precedes each frame of the sockets.
const vnetHeader = 10

func packetSocket(t *testing.T, link string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	i, err := net.InterfaceByName(link)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}), Ifindex: i.Index}))
	return fd
}

// pump sends the frames that it receives, until the link is deleted. It completes checksums of headers that begin before limit.
func pump(from, to, limit int) {
	b := make([]byte, 65536)
	for {
		n, err := unix.Read(from, b)
		if err != nil {
			return
		}
		frame := b[vnetHeader:n]
		if start, offset := int(binary.NativeEndian.Uint16(b[6:])), int(binary.NativeEndian.Uint16(b[8:])); b[0]&1 != 0 && start < limit {
			binary.BigEndian.PutUint16(frame[start+offset:], ^sum(frame[start:]))
		}
		clear(b[:vnetHeader])
		_, _ = unix.Write(to, b[:n])
	}
}

// sum is the sum of RFC 1071.
func sum(b []byte) uint16 {
	var n uint32
	for i, octet := range b {
		n += uint32(octet) << (8 * (1 - i&1))
	}
	for n > 0xffff {
		n = n&0xffff + n>>16
	}
	return uint16(n)
}

// TestWrongChecksums: an interface breaks the checksums of packets in the tunnel. The node that receives them says so, and the switch that
// it names mends it, by the configuration and by the flag. Nodes whose packets arrive say nothing.
func TestWrongChecksums(t *testing.T) {
	w := newWorld(t, 2, dual)
	n, other := w.nodes[0], w.nodes[1]
	pods := w.startAll()
	asks := func() [2]bool { return [2]bool{pods[0].asks(pods[1], false), pods[0].asks(pods[1], true)} }
	w.reach(false, pods...)
	w.reach(true, pods...)
	silent := func(what string, nodes ...*node) {
		t.Helper()
		for _, n := range nodes {
			if c := n.status().WrongChecksums; c != nil {
				t.Errorf("%s: %s: %+v", what, n.name, c)
			}
		}
	}
	silent("a sound interface", n, other)
	n.breakInterface()
	n.until("ready again", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 })
	var c *checksums
	other.w.within(func() bool {
		if asks() != [2]bool{} {
			t.Fatal("the interface is not broken")
		}
		c = other.status().WrongChecksums
		return c != nil
	}, func() string {
		return "no wrong checksums: " + other.exec("grep", "Udp:", "/proc/net/snmp") + n.ip("neigh")
	})
	if !strings.Contains(c.Evidence, " UDP datagrams in ") || !strings.Contains(c.Fix, "--vxlan-tx-checksum-offload=false, or set Backend.TxChecksumOffload to false") {
		t.Errorf("%+v", c)
	}
	if out, err := other.verb("agent status", nil); err != nil || !strings.Contains(fmt.Sprint(out), "\nwarning: packets of other nodes have wrong checksums: "+c.Evidence+": "+c.Fix) {
		t.Errorf("%s, %v", out, err)
	}
	silent("the sender", n)
	for _, mend := range []func(on bool){
		func(on bool) {
			w.configure(strings.Replace(dual, "}}", fmt.Sprintf(`,"TxChecksumOffload":%t}}`, on), 1))
		},
		func(on bool) { n.stop(); n.start(fmt.Sprintf("--vxlan-tx-checksum-offload=%t", on)) },
	} {
		for _, on := range []bool{false, true} {
			mend(on)
			w.within(func() bool { return asks() == [2]bool{!on, !on} }, func() string { return fmt.Sprintf("offload %t: no change\n%s", on, n.dump()) })
		}
	}
	w.configure(strings.Replace(dual, "}}", `,"TxChecksumOffload":false}}`, 1))
	if out := n.status(); out.TxChecksumOffload != "on" {
		t.Errorf("the flag does not precede the configuration: %+v", out)
	}
	other.until("another fix, because the switch is set", func(a answer) bool {
		return a.TxChecksumOffload == "off" && a.WrongChecksums != nil && strings.HasPrefix(a.WrongChecksums.Fix, "ethtool -K INTERFACE tx off")
	})
	n.stop()
	n.start()
	other.stop()
	other.start()
	w.reach(false, pods...)
	w.reach(true, pods...)
	silent("mended", n, other)
}

// TestVXLANPort: the flag replaces the configuration's port, and a node with another one is left out, by its name.
func TestVXLANPort(t *testing.T) {
	w := newWorld(t, 2, `{"Network":"10.244.0.0/16","Backend":{"Port":4790}}`)
	pods := w.startAll()
	w.reach(false, pods...)
	n, other := w.nodes[0], w.nodes[1]
	n.stop()
	n.start("--vxlan-port=8472")
	for _, c := range []struct {
		n        *node
		own, its int
	}{{n, 8472, 4790}, {other, 4790, 8472}} {
		c.n.until("the other node is left out", func(a answer) bool {
			return a.Port == c.own && len(a.Nodes) == 1 && a.Nodes[0].State == "left out" &&
				strings.Contains(a.Nodes[0].Error, fmt.Sprintf("its UDP port is %d, this node's is %d: give all nodes the same Backend.Port or -vxlan-port", c.its, c.own))
		})
		if out := c.n.ip("-d link show flannel.1"); !strings.Contains(out, fmt.Sprintf("dstport %d ", c.own)) {
			t.Errorf("%s: %s", c.n.name, out)
		}
	}
	if out, err := n.verb("agent status", nil); err != nil || !strings.Contains(fmt.Sprint(out), "vxlan over eth1, UDP port 8472, 172.17.8.101 MTU 1450") {
		t.Errorf("%s, %v", out, err)
	}
	other.stop()
	other.start("--vxlan-port=8472")
	w.reach(false, pods...)
}
