package conntrack

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// FuzzParse encodes the connection that was read from a message, and reads it again.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x02\x00\x00\x00\x34\x00\x01\x80\x14\x00\x01\x80\x08\x00\x01\x00\xc6\x33\x64\x02\x08\x00\x02\x00\xc0\x00\x02\x01" +
		"\x1c\x00\x02\x80\x05\x00\x01\x00\x11\x00\x00\x00\x06\x00\x02\x00\x30\x39\x00\x00\x06\x00\x03\x00\x00\x35\x00\x00\x08\x00\x0c\x00\x01\x02\x03\x04"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parse(b)
		if err != nil || o.family != unix.AF_INET || !o.dst.Is4() || !o.replySrc.Is4() {
			return
		}
		want := filter{proto: o.proto, port: o.port, dst: o.dst, replySrc: o.replySrc}
		m := want.request(ctGet, o.family)
		again, err := parse(append([]byte{o.family, 0, 0, 0}, m.Body...))
		if err != nil || (filter{proto: again.proto, port: again.port, dst: again.dst, replySrc: again.replySrc}) != want {
			t.Errorf("%+v, %v, want %+v", again, err, want)
		}
	})
}

// TestParse reads an IPv6 connection of a zone, as the kernel describes it.
func TestParse(t *testing.T) {
	client, service, pod := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("fd00::3")
	proto, port, id, zone := uint8(unix.IPPROTO_UDP), nlconn.BigEndian16(53), []byte{1, 2, 3, 4}, []byte{0, 7}
	direction := func(src, dst netip.Addr) []nlconn.Attr {
		return []nlconn.Attr{
			{Kind: nl.CTA_TUPLE_IP, At: []nlconn.Attr{{Kind: nl.CTA_IP_V6_SRC, At: &src}, {Kind: nl.CTA_IP_V6_DST, At: &dst}}},
			{Kind: nl.CTA_TUPLE_PROTO, At: []nlconn.Attr{{Kind: nl.CTA_PROTO_NUM, At: &proto}, {Kind: nl.CTA_PROTO_DST_PORT, At: &port}}},
		}
	}
	b := nlconn.Body{unix.AF_INET6, 0, 0, 0}
	b.Attrs([]nlconn.Attr{
		{Kind: nl.CTA_TUPLE_ORIG, At: direction(client, service)},
		{Kind: nl.CTA_TUPLE_REPLY, At: direction(pod, client)},
		{Kind: nl.CTA_ID, At: &id},
		{Kind: nl.CTA_ZONE, At: &zone},
	})
	o, err := parse(b)
	if err != nil || o.proto != proto || o.port != port || o.dst != service || o.replySrc != pod || string(o.id) != string(id) || string(o.zone) != string(zone) || len(o.tuple) == 0 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, s := range []struct {
		Selection
		name string
		want bool
	}{
		{Selection{Proto: proto, Port: 53}, "port", true},
		{Selection{Proto: proto, Port: 50, End: 60, ReplySrc: pod}, "range", true},
		{Selection{Proto: proto, Port: 54}, "other port", false},
		{Selection{Proto: unix.IPPROTO_TCP, Port: 53}, "other protocol", false},
		{Selection{Proto: proto, Port: 53, Dst: netip.IPv6Unspecified()}, "family", true},
		{Selection{Proto: proto, Port: 53, Dst: netip.IPv4Unspecified()}, "other family", false},
		{Selection{Proto: proto, Port: 53, ReplySrc: client}, "other container", false},
		{Selection{Proto: proto, Port: 53, Local: true}, "forwarded", false},
		{Selection{Proto: proto, Port: 53, Local: true, Addresses: map[netip.Addr]bool{service: true}}, "local", true},
	} {
		if got := s.Matches(o.tracked()); got != s.want {
			t.Errorf("%s: %t", s.name, got)
		}
	}
}
