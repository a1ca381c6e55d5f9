package sockets

import "testing"

func TestParseDatagrams(t *testing.T) {
	const (
		v4 = `Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm InCsumErrors
Tcp: 1 99
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 1000 9 9 9 9 9 5 9 9
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
UdpLite: 88 9 9 9 9 9 88 9 9
`
		v6 = "Ip6InReceives                   \t70\nUdp6InDatagrams                 \t200\nUdp6InCsumErrors                \t2\nUdpLite6InCsumErrors            \t77\n"
	)
	for _, c := range []struct {
		v4, v6 string
		want   Datagrams
	}{
		{v4, v6, Datagrams{1207, 7}}, {v4, "", Datagrams{1005, 5}}, {"", "", Datagrams{}}, {"Udp:\nUdp: 1\nUdp: InDatagrams\n", "Udp6InDatagrams", Datagrams{}},
	} {
		if have := parseDatagrams(c.v4, c.v6); have != c.want {
			t.Errorf("%+v, want %+v", have, c.want)
		}
	}
	if d, err := CountDatagrams(); err != nil {
		t.Errorf("this kernel's: %+v, %v", d, err)
	}
}
