package dropmon

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// frame returns an Ethernet frame with an IPv4 header and the beginning of a TCP header.
func frame(ether ...byte) []byte {
	b := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, ether...)
	b = append(b, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	return append(b, 0x9c, 0x40, 0, 80)
}

func TestReadHeaders(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80")
	fragment := frame(8, 0)
	fragment[etherHeader+7] = 1
	for _, v := range []struct {
		name, proto, mac string
		protocol         uint16
		packet           []byte
		from, to         netip.AddrPort
	}{
		{"ethernet", "tcp", "02:00:00:00:00:02", unix.ETH_P_IP, frame(8, 0), from, to},
		{"VLAN", "tcp", "02:00:00:00:00:02", unix.ETH_P_IP, frame(0x81, 0, 0, 7, 8, 0), from, to},
		{"tunnel", "tcp", "", unix.ETH_P_IP, frame(8, 0)[etherHeader:], from, to},
		{"later fragment", "tcp", "02:00:00:00:00:02", unix.ETH_P_IP, fragment, netip.AddrPortFrom(from.Addr(), 0), netip.AddrPortFrom(to.Addr(), 0)},
		{"cut", "ip", "02:00:00:00:00:02", unix.ETH_P_IP, frame(8, 0)[:30], netip.AddrPort{}, netip.AddrPort{}},
		{"ARP", "arp", "02:00:00:00:00:02", unix.ETH_P_ARP, frame(8, 6), netip.AddrPort{}, netip.AddrPort{}},
		{"unknown", "0x88cc", "", 0x88cc, nil, netip.AddrPort{}, netip.AddrPort{}},
	} {
		var got Drop
		got.readHeaders(v.protocol, v.packet)
		if got.Proto != v.proto || got.SourceMAC != v.mac || got.From != v.from || got.To != v.to {
			t.Errorf("%s: %+v", v.name, got)
		}
	}
}

// TestDropIn: a packet of a flow has its ID and one of its addresses, in the direction of the ID.
func TestDropIn(t *testing.T) {
	flow, to := nft.Flow{From: netip.MustParseAddr("10.0.0.1"), ID: 40000}, netip.MustParseAddr("10.0.0.2")
	echo := func(kind byte, id ...byte) []byte {
		b := frame(8, 0)
		b[etherHeader+9] = unix.IPPROTO_ICMP
		return append(append(b[:etherHeader+ipv4Least], kind, 0, 0, 0), id...)
	}
	swapped := func(b []byte) []byte {
		ip := b[etherHeader:]
		for i := range 4 {
			ip[12+i], ip[16+i] = ip[16+i], ip[12+i]
		}
		return b
	}
	ports := swapped(frame(8, 0))
	copy(ports[etherHeader+ipv4Least:], []byte{0, 80, 0x9c, 0x40})
	translated, other := frame(8, 0), frame(8, 0)
	translated[etherHeader+15] = 9
	other[etherHeader+15], other[etherHeader+19] = 9, 9
	for _, v := range []struct {
		name      string
		packet    []byte
		reply, in bool
	}{
		{"SYN", frame(8, 0), false, true},
		{"answer", ports, true, true},
		{"SYN in the wrong direction", swapped(frame(8, 0)), false, false},
		{"SYN after NAT of one address", translated, false, true},
		{"the ID of another flow", other, false, false},
		{"echo request", echo(8, 0x9c, 0x40, 0, 1), false, true},
		{"echo reply", swapped(echo(0, 0x9c, 0x40, 0, 1)), true, true},
		{"echo request with another ID", echo(8, 0x9c, 0x41, 0, 1), false, false},
		{"ICMP error", echo(3, 0x9c, 0x40, 0, 1), false, false},
		{"cut", echo(8), false, false},
	} {
		var d Drop
		d.readHeaders(unix.ETH_P_IP, v.packet)
		if reply, in := d.In(flow, to); in != v.in || in && reply != v.reply {
			t.Errorf("%s: reply %t, in the flow %t", v.name, reply, in)
		}
	}
	for want, d := range map[string]Drop{"R in s": {Reason: "R", Symbol: "s"}, "R": {Reason: "R"}, "in s": {Symbol: "s"}, "": {}} {
		if got := d.Cause(); got != want {
			t.Errorf("cause %q, want %q", got, want)
		}
	}
}

// FuzzReadHeaders feeds random packets to the decoder.
func FuzzReadHeaders(f *testing.F) {
	f.Add(uint16(unix.ETH_P_IP), frame(8, 0))
	f.Add(uint16(unix.ETH_P_IPV6), make([]byte, 80))
	f.Fuzz(func(_ *testing.T, protocol uint16, b []byte) { new(Drop).readHeaders(protocol, b) })
}
