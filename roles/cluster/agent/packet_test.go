package agent_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/test/await"
)

// frame is a tunnelled packet on the wire (RFC 7348, section 5).
type frame struct {
	outerSrc, outerDst, innerSrc, innerDst netip.Addr
	port                                   uint16
	vni                                    uint32
	srcMAC, dstMAC                         string
	size                                   int
}

// parseFrame parses an Ethernet frame. ok is false if the frame is not tunnelled IPv4.
func parseFrame(b []byte) (f frame, ok bool) {
	const eth, ip, udp, vx = 14, 20, 8, 8
	if len(b) < 2*eth+2*ip+udp+vx || binary.BigEndian.Uint16(b[12:]) != unix.ETH_P_IP || b[eth] != 0x45 || b[eth+9] != unix.IPPROTO_UDP {
		return f, false
	}
	addr := func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b[:4])) }
	f.size, f.outerSrc, f.outerDst = len(b)-eth, addr(b[eth+12:]), addr(b[eth+16:])
	b = b[eth+ip:]
	f.port = binary.BigEndian.Uint16(b[2:])
	b = b[udp:]
	if b[0] != 0x08 { // only the flag for a valid VNI may be set
		return f, false
	}
	f.vni = binary.BigEndian.Uint32(b[4:]) >> 8
	b = b[vx:]
	f.dstMAC, f.srcMAC = net.HardwareAddr(b[:6]).String(), net.HardwareAddr(b[6:12]).String()
	b = b[eth:]
	f.innerSrc, f.innerDst = addr(b[12:]), addr(b[16:])
	return f, true
}

// capture opens a packet socket on an interface of the switch.
func capture(t *testing.T, link string) *os.File {
	t.Helper()
	i, err := net.InterfaceByName(link)
	must(t, err)
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
	f := os.NewFile(uintptr(fd), "packets")
	t.Cleanup(func() { f.Close() })
	return f
}

// TestPackets: the outer packet is VXLAN with the right VNI, port and addresses. A pod's packet of
// its MTU with "don't fragment" fits into the underlay's MTU.
func TestPackets(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	mac := func(n *node) string {
		v, err := cluster.ParseVTEP(w.record(n.name).BackendData)
		must(t, err)
		return v.MAC.String()
	}
	packets := capture(t, "port0")
	from, to := pods[0], pods[1]
	const headers = 20 + 8
	if err := from.sendWhole(to.addr4, 1450-headers); err != nil {
		t.Fatalf("a packet of the MTU: %v", err)
	}
	must(t, packets.SetReadDeadline(await.Deadline()))
	b := make([]byte, 65536)
	for {
		n, err := packets.Read(b)
		if err != nil {
			t.Fatalf("no such packet: %v", err)
		}
		f, ok := parseFrame(b[:n])
		if !ok || f.size != 1500 {
			continue
		}
		want := frame{
			outerSrc: from.node.addr4, outerDst: to.node.addr4, innerSrc: from.addr4, innerDst: to.addr4,
			port: 8472, vni: 1, srcMAC: mac(from.node), dstMAC: mac(to.node), size: 1500,
		}
		if f != want {
			t.Errorf("packet %+v, want %+v", f, want)
		}
		break
	}
	if err := from.sendWhole(to.addr4, 1450-headers+1); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a packet larger than the MTU: %v", err)
	}
}

// sendWhole sends a datagram that must not be fragmented and waits for the answer.
func (p *pod) sendWhole(to netip.Addr, size int) error {
	t := p.w.t
	t.Helper()
	var c *net.UDPConn
	p.ns.Do(t, func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
		return err
	})
	defer c.Close()
	raw, err := c.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}))
	must(t, err)
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	_ = c.SetReadDeadline(await.Deadline())
	n, err := c.Read(make([]byte, size+1))
	if err == nil && n != size {
		t.Errorf("%d bytes came back of %d", n, size)
	}
	return err
}
