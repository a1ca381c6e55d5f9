package reach

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// A host that does not answer is asked AskTimes times, askTime apart.
const (
	AskTimes = 3
	askTime  = time.Second
)

// Host is a host on a link.
type Host struct {
	MAC  net.HardwareAddr
	Addr netip.Addr
}

// asker asks hosts on a link in one address family.
type asker struct {
	fd  int
	ask func(h Host) error
	// answer returns the address that a message is an answer for.
	answer func(m []byte) (netip.Addr, bool)
}

// Answering asks each host for its address, by an ARP request to its MAC or by a neighbour solicitation, and returns the addresses that
// were answered, with the number of requests until then. The kernel answers ARP before all rules for IP packets. link, mac and sender are
// those of this host.
func Answering(ctx context.Context, link int, mac net.HardwareAddr, sender netip.Addr, hosts []Host) (map[netip.Addr]int, error) {
	open := askARP
	if sender.Is6() {
		open = askNeighbour
	}
	a, err := open(link, mac, sender)
	if err != nil {
		return nil, nlconn.Explain(err, "open a socket for the requests")
	}
	defer unix.Close(a.fd) //nolint:errcheck // nothing is stored
	answered := map[netip.Addr]int{}
	for asked := 1; asked <= AskTimes; asked++ {
		for _, h := range hosts {
			if answered[h.Addr] == 0 {
				_ = a.ask(h) // the link can be full or down; then there is no answer
			}
		}
		for until := time.Now().Add(askTime); len(answered) < len(hosts) && time.Now().Before(until); {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err := a.receive(time.Until(until), hosts, answered, asked); err != nil {
				return nil, nlconn.Explain(err, "receive answers")
			}
		}
		if len(answered) == len(hosts) {
			break
		}
	}
	return answered, nil
}

// receive waits for a packet, and notes it if it is the first answer of one of the hosts.
func (a *asker) receive(wait time.Duration, hosts []Host, answered map[netip.Addr]int, asked int) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(a.fd), Events: unix.POLLIN}}, int(wait/time.Millisecond)+1)
	var m [64]byte
	n := 0
	if err == nil {
		n, _, err = unix.Recvfrom(a.fd, m[:], 0)
	}
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	if err != nil {
		return err
	}
	from, ok := a.answer(m[:n])
	if ok && answered[from] == 0 && slices.ContainsFunc(hosts, func(h Host) bool { return h.Addr == from }) {
		answered[from] = asked
	}
	return nil
}

func askARP(link int, mac net.HardwareAddr, sender netip.Addr) (*asker, error) {
	fd, err := openARP(link)
	return &asker{
		fd: fd,
		ask: func(h Host) error {
			to := &unix.SockaddrLinklayer{Protocol: etherTypeARP(), Ifindex: link, Halen: 6}
			copy(to.Addr[:], h.MAC)
			return unix.Sendto(fd, arpRequest(mac, sender, h.Addr), 0, to)
		},
		answer: func(m []byte) (netip.Addr, bool) {
			const reply, operation, sender, size = 2, 6, 14, 28 // offsets as in arpRequest
			if len(m) < size || binary.BigEndian.Uint16(m[operation:]) != reply {
				return netip.Addr{}, false
			}
			return netip.AddrFrom4([4]byte(m[sender : sender+4])), true
		},
	}, err
}

// askNeighbour asks by neighbour solicitations to the address itself, as the kernel does to see whether a neighbour is still there (RFC
// 4861, section 7.2.2). The kernel has the MAC of a node's device.
func askNeighbour(link int, mac net.HardwareAddr, sender netip.Addr) (*asker, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, err
	}
	const solicitation, advertisement, target, size, sourceMAC, hopLimit = 135, 136, 8, 24, 1, 255
	others := unix.ICMPv6Filter{Data: [8]uint32{}}
	for i := range others.Data {
		others.Data[i] = ^uint32(0)
	}
	others.Data[advertisement/32] &^= 1 << (advertisement % 32)
	err = errors.Join(
		unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &others),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, link),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hopLimit), // receivers ignore any other
		unix.Bind(fd, &unix.SockaddrInet6{Addr: sender.As16()}),
	)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &asker{
		fd: fd,
		ask: func(h Host) error {
			m := append(make([]byte, target, size), h.Addr.AsSlice()...) // the kernel adds the checksum
			m[0] = solicitation
			m = append(append(m, sourceMAC, 1), mac...)
			return unix.Sendto(fd, m, 0, &unix.SockaddrInet6{Addr: h.Addr.As16()})
		},
		answer: func(m []byte) (netip.Addr, bool) {
			if len(m) < size || m[0] != advertisement {
				return netip.Addr{}, false
			}
			return netip.AddrFrom16([16]byte(m[target:size])), true
		},
	}, nil
}
