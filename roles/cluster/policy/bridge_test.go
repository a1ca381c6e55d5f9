package policy_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// denyAll isolates the pods app=web.
const denyAll = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
`

// frames counts the frames that arrive in a pod's namespace and have one of some texts, in the order of their arrival.
func frames(t *testing.T, ns *netopstest.NS, texts ...string) []atomic.Int64 {
	t.Helper()
	counts := make([]atomic.Int64, len(texts))
	var fd int
	ns.Do(t, func() (err error) {
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		return err
	})
	tv := unix.Timeval{Usec: 50_000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	ended := make(chan struct{})
	t.Cleanup(func() { close(stop); <-ended; _ = unix.Close(fd) })
	go func() {
		defer close(ended)
		b := make([]byte, 2000)
		for {
			select {
			case <-stop:
				return
			default:
			}
			size, from, err := unix.Recvfrom(fd, b, 0)
			if ll, ok := from.(*unix.SockaddrLinklayer); err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			for i, text := range texts {
				if strings.Contains(string(b[:size]), text) {
					counts[i].Add(1)
				}
			}
		}
	}()
	return counts
}

// mac returns the hardware address of a pod's interface.
func (p *pod) mac(t *testing.T) net.HardwareAddr {
	t.Helper()
	return hardware(p.ns.Link(t, "eth0"))
}

// hardware returns the hardware address of a link, or zeros for one without.
func hardware(l netlink.Link) net.HardwareAddr {
	if a := l.Attrs().HardwareAddr; len(a) > 0 {
		return a
	}
	return make(net.HardwareAddr, 6)
}

// frame returns an Ethernet frame.
func frame(from, to net.HardwareAddr, kind []byte, packet []byte) []byte {
	return append(append(append(append([]byte{}, to...), from...), kind...), packet...)
}

// udp4 returns an IPv4 packet with a UDP datagram, whose checksum is absent.
func udp4(from, to string, fromPort, toPort uint16, text string) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	a, z := netip.MustParseAddr(from).As4(), netip.MustParseAddr(to).As4()
	b = append(append(b, a[:]...), z[:]...)
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(text)))
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	for _, v := range []uint16{fromPort, toPort, uint16(8 + len(text)), 0} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return append(b, text...)
}

// sendFrame sends a frame through a pod's interface.
func (p *pod) sendFrame(t *testing.T, b []byte) {
	t.Helper()
	p.sendFrameBy(t, p.ns.Link(t, "eth0").Attrs().Index, b)
}

// sendFrameBy sends a frame through a link of a pod's namespace.
func (p *pod) sendFrameBy(t *testing.T, index int, b []byte) {
	t.Helper()
	p.ns.Do(t, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // only sent
		return unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: index, Halen: 6})
	})
}

// arpRequest returns a message of ARP.
func arpRequest(mac net.HardwareAddr, from, to netip.Addr) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac...)
	b = append(append(b, from.AsSlice()...), make([]byte, 6)...)
	return append(b, to.AsSlice()...)
}

// linkLocal sends a datagram to a pod's link-local address, whose neighbour entry is fixed.
func (p *pod) linkLocal(t *testing.T, to *pod, text string) {
	t.Helper()
	m := to.mac(t)
	a := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	run(t, "nsenter --net="+p.ns.Path()+" ip -6 neigh replace "+a.String()+" lladdr "+m.String()+" dev eth0")
	p.ns.Do(t, func() error {
		c, err := net.Dial("udp", net.JoinHostPort(a.String()+"%eth0", "81"))
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // only sent
		_, err = c.Write([]byte(text))
		return err
	})
}

// TestBridge: between pods of one bridge, frames that the rules of addresses do not see do not reach a pod that a policy
// selects, or leave it. Those of pods that no policy selects pass, and so do messages of DHCP. What does not arrive would have
// arrived before a marker that follows on the same way.
func TestBridge(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", denyAll)
	n.start()
	server := n.pod(1, 2, "")
	server.call.Conf = strings.Replace(server.call.Conf, `"isDefaultGateway"`, `"routerAddresses":["10.1.0.2"],"isDefaultGateway"`, 1)
	one, two, web := n.add(server), n.add(n.pod(1, 4, "")), n.add(n.pod(1, 3, "app=web"))
	awaitRules(t, "10.1.0.3")
	everyone := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	ip := []byte{8, 0}
	cases := map[string]func(from, to *pod, text string){
		"broadcast": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), everyone, ip, udp4(from.addresses[0].String(), "255.255.255.255", 1000, 81, text)))
		},
		"broadcast of the network to one": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), to.mac(t), ip, udp4(from.addresses[0].String(), "10.1.0.255", 1000, 81, text)))
		},
		"multicast": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), net.HardwareAddr{1, 0, 0x5e, 0, 0, 251}, ip, udp4(from.addresses[0].String(), "224.0.0.251", 1000, 5353, text)))
		},
		"VLAN tag": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), to.mac(t), []byte{0x81, 0, 0, 7, 8, 0}, udp4(from.addresses[0].String(), to.addresses[0].String(), 1000, 81, text)))
		},
		"two VLAN tags": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), to.mac(t), []byte{0x88, 0xa8, 0, 7, 0x81, 0, 0, 7, 8, 0}, udp4(from.addresses[0].String(), to.addresses[0].String(), 1000, 81, text)))
		},
		"PPPoE": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), to.mac(t), []byte{0x88, 0x64}, []byte(text)))
		},
		"experiment": func(from, to *pod, text string) {
			from.sendFrame(t, frame(from.mac(t), to.mac(t), []byte{0x88, 0xb5}, []byte(text)))
		},
		"link-local": func(from, to *pod, text string) { from.linkLocal(t, to, text) },
		"another source": func(from, to *pod, text string) {
			if from == web {
				from.sendFrame(t, frame(from.mac(t), to.mac(t), ip, udp4("10.1.0.77", to.addresses[0].String(), 1000, 81, text)))
			} else {
				from.sendFrame(t, frame(from.mac(t), to.mac(t), ip, udp4(from.addresses[0].String(), "10.1.0.77", 1000, 81, text)))
			}
		},
	}
	reload := func() {
		file := filepath.Join(n.Dir(), "saved")
		out, err := exec.Command("nft", "list", "ruleset").Output()
		if err == nil {
			err = os.WriteFile(file, append([]byte("flush ruleset\n"), out...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		run(t, "nft -f "+file)
	}
	for name, send := range cases {
		t.Run(name, func(t *testing.T) {
			passesOthers := name != "two VLAN tags" // no rule looks behind two tags
			reload()                                // nft loads other expressions than the agent makes
			for _, way := range []struct {
				what     string
				from, to *pod
				passes   bool
			}{{"to the pod", one, web, false}, {"from the pod", web, one, false}, {"others", one, two, passesOthers}} {
				text, marker := way.what+" "+name, "marker "+strings.ToUpper(way.what+" "+name)
				got := frames(t, way.to.ns, text, marker)
				send(way.from, way.to, text)
				arp := frame(way.from.mac(t), way.to.mac(t), []byte{8, 6}, append(arpRequest(way.from.mac(t), way.from.addresses[0], way.to.addresses[0]), marker...))
				await.Until(t, func() bool { way.from.sendFrame(t, arp); return got[1].Load() > 0 }, func() string { return "no marker" })
				if arrived := got[0].Load() > 0; arrived != way.passes {
					t.Errorf("%s: arrived %v, want %v", way.what, arrived, way.passes)
				}
			}
		})
	}
	t.Run("DHCP", func(t *testing.T) {
		for _, d := range []struct {
			from, to *pod
			packet   []byte
		}{
			{web, one, udp4("0.0.0.0", "255.255.255.255", 68, 67, "request")},
			{one, web, udp4("10.1.0.2", "255.255.255.255", 67, 68, "request")},
			{web, one, udp4("10.1.0.3", "10.1.0.2", 68, 67, "request")},
			{one, web, udp4("10.1.0.2", "10.1.0.3", 67, 68, "request")},
		} {
			got := frames(t, d.to.ns, "request")
			b := frame(d.from.mac(t), everyone, ip, d.packet)
			await.Until(t, func() bool { d.from.sendFrame(t, b); return got[0].Load() > 0 }, func() string { return "no DHCP message" })
		}
	})
	if out, err := exec.Command("nft", "list", "table", "bridge", "cnibox_policy").CombinedOutput(); err != nil || !strings.Contains(string(out), "10.1.0.3") {
		t.Error(err, string(out))
	}
}
