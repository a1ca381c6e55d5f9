package dhcp_test

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
)

// rogue is a DHCP server whose answers a test defines.
type rogue struct {
	conn *net.UDPConn
	// answer returns the packets to send after a message.
	answer func(m *dhcpv4.DHCPv4) [][]byte
}

// newRogue runs a rogue in a namespace until the test ends.
func newRogue(t *testing.T, ns *netopstest.NS, answer func(*dhcpv4.DHCPv4) [][]byte) {
	t.Helper()
	r := &rogue{answer: answer}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errorOf(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			if err == nil {
				err = unix.BindToDevice(int(fd), "eth0")
			}
		}), &err)
	}}
	ns.Do(t, func() error {
		c, err := config.ListenPacket(context.Background(), "udp4", ":67")
		if err == nil {
			r.conn = c.(*net.UDPConn)
		}
		return err
	})
	t.Cleanup(func() { _ = r.conn.Close() })
	go r.serve()
}

func errorOf(err error, inner *error) error {
	if err != nil {
		return err
	}
	return *inner
}

func (r *rogue) serve() {
	for b := make([]byte, 1<<16); ; {
		n, err := r.conn.Read(b)
		if err != nil {
			return
		}
		m, err := dhcpv4.FromBytes(b[:n])
		if err != nil {
			continue
		}
		for _, p := range r.answer(m) {
			_, _ = r.conn.WriteToUDP(p, &net.UDPAddr{IP: net.IPv4bcast, Port: 68})
		}
	}
}

// honest returns a valid answer: 10.9.0.10/24 for a minute.
func honest(m *dhcpv4.DHCPv4, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	kind := dhcpv4.MessageTypeOffer
	if m.MessageType() == dhcpv4.MessageTypeRequest {
		kind = dhcpv4.MessageTypeAck
	}
	out, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 10)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithLeaseTime(60), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1))),
	}, more...)...)
	if err != nil {
		panic(err)
	}
	return out
}

// with answers each message with the valid answer and the same changes.
func with(more ...dhcpv4.Modifier) func(*dhcpv4.DHCPv4) [][]byte {
	return func(m *dhcpv4.DHCPv4) [][]byte {
		if m.MessageType() == dhcpv4.MessageTypeRelease {
			return nil
		}
		return [][]byte{honest(m, more...).ToBytes()}
	}
}

func option(code uint8, value ...byte) dhcpv4.Modifier {
	return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), value)
}
