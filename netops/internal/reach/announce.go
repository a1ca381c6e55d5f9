package reach

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// openARP opens a socket for the ARP packets of a link.
func openARP(link int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(etherTypeARP()))
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherTypeARP(), Ifindex: link}); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// etherTypeARP returns ETH_P_ARP in network order.
func etherTypeARP() uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
}

// broadcast sends an ARP packet to all hosts on a link.
func broadcast(fd, link int, m []byte) error {
	return unix.Sendto(fd, m, 0, &unix.SockaddrLinklayer{
		Protocol: etherTypeARP(), Ifindex: link, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	})
}

// arpRequest returns an ARP request for Ethernet and IPv4 (RFC 826).
func arpRequest(mac net.HardwareAddr, sender, target netip.Addr) []byte {
	m := binary.BigEndian.AppendUint16(nil, 1) // Ethernet
	m = binary.BigEndian.AppendUint16(m, unix.ETH_P_IP)
	m = append(m, 6, 4, 0, 1) // lengths of the addresses; request
	m = append(append(m, mac...), sender.AsSlice()...)
	return append(append(m, make([]byte, 6)...), target.AsSlice()...)
}

// Announce announces an address of a link to the hosts on it, as the kernel does with arp_notify and ndisc_notify: by
// a gratuitous ARP request (RFC 5227 section 3) or an unsolicited neighbour advertisement (RFC 4861 section 7.2.6).
func Announce(link int, mac net.HardwareAddr, addr netip.Addr) error {
	send := announce6
	if addr.Is4() {
		send = announce4
	}
	return nlconn.Explain(send(link, mac, addr), "announce "+addr.String())
}

func announce4(link int, mac net.HardwareAddr, addr netip.Addr) error {
	fd, err := openARP(link)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // sendto has returned the errors
	return broadcast(fd, link, arpRequest(mac, addr, addr))
}

// announce6 lets the kernel write the IPv6 header and the checksum.
func announce6(link int, mac net.HardwareAddr, addr netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // sendto has returned the errors
	const hopLimit = 255 // receivers ignore any other (section 7.1.2)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, hopLimit),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, link),
		unix.Bind(fd, &unix.SockaddrInet6{Addr: addr.As16()}),
	)
	if err != nil {
		return err
	}
	const advertisement, override, targetLinkLayer = 136, 0x20, 2
	m := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, addr.AsSlice()...)
	m = append(append(m, targetLinkLayer, 1), mac...)
	return unix.Sendto(fd, m, 0, &unix.SockaddrInet6{Addr: netip.IPv6LinkLocalAllNodes().As16(), ZoneId: uint32(link)})
}
