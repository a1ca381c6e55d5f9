package reach

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// A host that does not answer is asked askTimes times, askTime apart.
const (
	askTimes = 3
	askTime  = time.Second
)

// Host is a host on a link.
type Host struct {
	MAC  net.HardwareAddr
	Addr netip.Addr
}

// Answering asks each host for its IPv4 address by an ARP request to its MAC, and returns the addresses that were answered. The kernel
// answers before all rules for IP packets. link, mac and sender are those of this host.
func Answering(ctx context.Context, link int, mac net.HardwareAddr, sender netip.Addr, hosts []Host) (map[netip.Addr]bool, error) {
	fd, err := openARP(link)
	if err != nil {
		return nil, nlconn.Explain(err, "open an ARP socket")
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is stored
	answered := map[netip.Addr]bool{}
	for range askTimes {
		for _, h := range hosts {
			if answered[h.Addr] {
				continue
			}
			to := &unix.SockaddrLinklayer{Protocol: etherTypeARP(), Ifindex: link, Halen: 6}
			copy(to.Addr[:], h.MAC)
			// The link can be full or down; then there is no answer.
			_ = unix.Sendto(fd, arpRequest(mac, sender, h.Addr), 0, to)
		}
		for until := time.Now().Add(askTime); len(answered) < len(hosts) && time.Now().Before(until); {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err := receiveARP(fd, time.Until(until), hosts, answered); err != nil {
				return nil, nlconn.Explain(err, "receive ARP packets")
			}
		}
		if len(answered) == len(hosts) {
			break
		}
	}
	return answered, nil
}

// receiveARP waits for a packet, and notes it if it is an answer of one of the hosts.
func receiveARP(fd int, wait time.Duration, hosts []Host, answered map[netip.Addr]bool) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait/time.Millisecond)+1)
	var m [64]byte
	n := 0
	if err == nil {
		n, _, err = unix.Recvfrom(fd, m[:], 0)
	}
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	const reply, operation, sender, size = 2, 6, 14, 28 // offsets as in arpRequest
	if err != nil || n < size || binary.BigEndian.Uint16(m[operation:]) != reply {
		return err
	}
	a := netip.AddrFrom4([4]byte(m[sender : sender+4]))
	for _, h := range hosts {
		if h.Addr == a {
			answered[a] = true
		}
	}
	return nil
}
