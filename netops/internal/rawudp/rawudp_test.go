package rawudp

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestPackUDP: a datagram has the headers that RFC 791 and RFC 768 want, whatever its payload. One payload of 65,536 has the sum 0, which
// is sent as all ones.
func TestPackUDP(t *testing.T) {
	from, to := netip.MustParseAddrPort("192.0.2.1:68"), netip.MustParseAddrPort("198.51.100.7:67")
	ones := 0
	for word := range 1 << 16 {
		payload := binary.BigEndian.AppendUint16(nil, uint16(word))
		b := packUDP(from, to, payload)
		udp := b[ipv4Header:]
		sum := binary.BigEndian.Uint16(udp[6:])
		if sum == 0xffff {
			ones++
		}
		pseudo := append(append([]byte{}, b[12:ipv4Header]...), 0, b[9], 0, byte(len(udp)))
		if sum == 0 || wordSum(append(pseudo, udp...)) != 0xffff || wordSum(b[:ipv4Header]) != 0xffff {
			t.Fatalf("payload %#x: % x", word, b)
		}
		d, ok := unpackUDP(b)
		if !ok || string(d.Payload) != string(payload) || d.From != from {
			t.Fatalf("payload %#x: %+v, %t", word, d, ok)
		}
	}
	if ones != 1 {
		t.Errorf("%d sums are all ones, want 1", ones)
	}
}

// wordSum adds 16-bit words in ones' complement (RFC 1071).
func wordSum(b []byte) uint16 {
	n := 0
	for i := 0; i < len(b); i += 2 {
		n += int(b[i])<<8 | int(b[i+1])
		n = n&0xffff + n>>16
	}
	return uint16(n)
}
