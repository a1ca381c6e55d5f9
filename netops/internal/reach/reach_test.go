package reach

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// quoted returns an ICMP error with the beginning of an echo request that id sent.
func quoted(kind, code byte, mtu uint16, id uint16) []byte {
	m := append([]byte{kind, code, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, make([]byte, header4)...)
	m[echoHeader], m[echoHeader+9] = 0x45, unix.IPPROTO_ICMP
	return append(m, echo(false, id, 1, echoHeader)...)
}

func TestDecode(t *testing.T) {
	s := &Sender{ID: 7, to: netip.MustParseAddr("192.0.2.1")}
	router := netip.MustParseAddr("192.0.2.254")
	reply := echo(false, 7, 1, 100)
	reply[0] = echoReply4
	for _, v := range []struct {
		name string
		m    []byte
		want received
		ok   bool
	}{
		{"answer", reply, received{isEcho: true, echo: 1}, true},
		{"own request", echo(false, 7, 1, 100), received{}, false},
		{"fragmentation needed", quoted(unreachable4, fragmentationNeeded, 1400, 7), received{refusal: Refusal{From: router, Text: "fragmentation needed", MTU: 1400}}, true},
		{"prohibited", quoted(unreachable4, 13, 0, 7), received{refusal: Refusal{From: router, Text: "prohibited"}}, true},
		{"unknown code", quoted(unreachable4, 99, 0, 7), received{refusal: Refusal{From: router, Text: "unreachable (code 99)"}}, true},
		{"of another sender", quoted(unreachable4, 1, 0, 8), received{}, false},
		{"cut", quoted(unreachable4, 1, 0, 7)[:30], received{}, false},
		{"empty", nil, received{}, false},
	} {
		got, ok := s.decode(v.m, router)
		if ok != v.ok || ok && got != v.want {
			t.Errorf("%s: %+v, %t; want %+v, %t", v.name, got, ok, v.want, v.ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(quoted(unreachable4, 1, 0, 7), false)
	f.Add(echo(true, 7, 1, 20), true)
	f.Fuzz(func(_ *testing.T, m []byte, v6 bool) {
		s := &Sender{ID: 7, to: netip.IPv4Unspecified()}
		if v6 {
			s.to = netip.IPv6Unspecified()
		}
		_, _ = s.decode(m, netip.Addr{})
		_ = arpAnswer(m, s.to)
	})
}
