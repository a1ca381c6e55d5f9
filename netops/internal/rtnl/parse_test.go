package rtnl

import (
	"bytes"
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// linkOfKind returns the body of an RTM_NEWLINK with a kind and its attributes.
func linkOfKind(kind, data string) []byte {
	b := make(nlconn.Body, unix.SizeofIfInfomsg)
	b.Nest(unix.IFLA_LINKINFO, func() {
		b.Text(nl.IFLA_INFO_KIND, kind)
		b.Bytes(nl.IFLA_INFO_DATA, []byte(data))
	})
	return b
}

// FuzzDecoders feeds random bytes to the decoders of the kernel's messages.
func FuzzDecoders(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Add([]byte("\x02\x18\x00\x00\xfe\x02\xfd\x01\x00\x00\x00\x00\x08\x00\x01\x00\x0a\x00\x00\x00\x0c\x00\x09\x00\x08\x00\x00\x01\x02\x00\x00\x00"))
	f.Add(linkOfKind("macvlan", "\x08\x00\x01\x00\x04\x00\x00\x00\x08\x00\x07\x00\xe8\x03\x00\x00"))
	f.Add(linkOfKind("ipvlan", "\x06\x00\x01\x00\x01\x00\x00\x00"))
	f.Add(linkOfKind("netkit", "\x08\x00\x03\x00\x00\x00\x00\x00\x08\x00\x05\x00\x01\x00\x00\x00"))
	f.Add(linkOfKind("vrf", "\x08\x00\x01\x00\x0a\x00\x00\x00"))
	f.Add(linkOfKind("bond", "\x05\x00\x01\x00\x01\x00\x00\x00\x08\x00\x03\x00\x64\x00\x00\x00\x05\x00\x0e\x00\x09\x00\x00\x00\x05\x00\x1b\x00"))
	f.Add(linkOfKind("vlan", "\x06\x00\x01\x00\xfe\x0f\x00\x00"))
	f.Add(linkOfKind("tun", "\x08\x00\x01\x00\xff\xff\xff\xff\x05\x00\x03\x00\x02\x00\x00\x00\x05\x00\x07\x00\x01\x00\x00\x00"))
	f.Add(vfMessage(kernelVF(0, 1, notReported, 2, []byte{0x88, 0xa8, 0, 0}), kernelVF(1, 0, 1, 0, nil)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = ParseLink(b)
		_, _ = ParseVFs(b)
		_, _, _ = ParseAddr(b)
		_, _ = ParseRouteOf(b, unix.RTN_UNICAST)
		_, _, _ = parseRule(b)
		_, _ = ParseNeigh(b)
		_, _ = parseNamespaceID(b)
	})
}

// kernelObject is what both directions of the codec have in common.
type kernelObject interface {
	Append(b nlconn.Body) nlconn.Body
}

// decoded returns the objects that the decoders read from a message.
func decoded(b []byte) (all []kernelObject) {
	if r, hops, err := ParseHops(b); err == nil && hops == nil && r.Dst.IsValid() {
		all = append(all, &r)
	}
	if r, ok, err := parseRule(b); ok && err == nil {
		all = append(all, &r)
	}
	if n, err := ParseNeigh(b); err == nil {
		all = append(all, &n)
	}
	if n, err := ParseNexthop(b); err == nil {
		all = append(all, &n)
	}
	return all
}

// decodedAs returns the object of the same type as o that is read from o's own request.
func decodedAs(o kernelObject) kernelObject {
	for _, other := range decoded(o.Append(nil)) {
		if reflect.TypeOf(other) == reflect.TypeOf(o) {
			return other
		}
	}
	return nil
}

// TestRoundTrip encodes and decodes objects with all of their fields.
func TestRoundTrip(t *testing.T) {
	for _, o := range []kernelObject{
		&Route{
			Link: 3, Priority: 7, Table: 1000, MTU: 1400, AdvMSS: 1300, Scope: unix.RT_SCOPE_LINK, Protocol: 142, Kind: unix.RTN_UNICAST,
			Dst: netip.MustParsePrefix("10.1.0.0/16"), Via: netip.MustParseAddr("fe80::1"), Src: netip.MustParseAddr("10.0.0.1"), OnLink: true,
		},
		&Route{NexthopID: 5, Table: 254, Kind: unix.RTN_UNREACHABLE, Dst: netip.MustParsePrefix("::/0")},
		&Rule{
			Action: unix.FR_ACT_TO_TBL, Family: unix.AF_INET6, Priority: 9, Table: 300, From: netip.MustParsePrefix("fd00::/64"), To: netip.MustParsePrefix("fd01::/48"),
			IIF: "eth0", OIF: "eth1", Mark: 1, Mask: 3, IPProto: 6, DstPort: 80, MinBits: 1, Protocol: 143,
		},
		&Rule{Action: unix.FR_ACT_PROHIBIT, Family: unix.AF_INET, Prohibit: true, MinBits: 33},
		&Neigh{Link: 3, State: unix.NUD_PERMANENT, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, IP: netip.MustParseAddr("10.0.0.1"), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}},
		&Nexthop{ID: 7, Protocol: 142, Hop: Hop{Via: netip.MustParseAddr("10.0.0.1"), Link: 3, OnLink: true}},
	} {
		if got := decodedAs(o); !reflect.DeepEqual(got, o) {
			t.Errorf("%T: %+v, want %+v", o, got, o)
		}
	}
	a := Addr{Link: 3, Prefix: netip.MustParsePrefix("10.1.0.2/24"), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
	m := a.Message(unix.RTM_NEWADDR)
	if got, ok, err := ParseAddr(m.Body); !ok || err != nil || got != a {
		t.Errorf("address: %+v, %v", got, err)
	}
	if last, err := nlconn.Find(m.Body[unix.SizeofIfAddrmsg:], unix.IFA_BROADCAST); err != nil || net.IP(last).String() != "10.1.0.255" {
		t.Errorf("broadcast address %v, %v", last, err)
	}
}

// TestKindRoundTrip encodes and decodes the attributes of each kind of link.
func TestKindRoundTrip(t *testing.T) {
	for _, k := range []KindState{
		{VLANFiltering: true, STP: 1},
		{Mode: "passthru", BCQueueLen: 7},
		{Mode: "l2"},
		{Mode: "l3"},
		{VLANID: 5},
		{Table: 1000},
		{VNI: 5, VXLAN: VXLAN{Port: 4789, Local: netip.MustParseAddr("10.0.0.1"), Group: netip.MustParseAddr("239.1.1.1"), Learning: true, GBP: true}},
		{VNI: 5, VXLAN: VXLAN{Port: 8472, Local: netip.MustParseAddr("fd00::1")}},
		{},
	} {
		for _, kind := range []string{KindBridge, KindMACVLAN, KindIPVLAN, KindNetkit, KindVLAN, KindVRF, KindVXLAN, KindWireGuard} {
			want := &Link{Kind: kind, KindState: k}
			if _, ok := ModeValue(kind, want.Mode); !ok && (want.Mode != "" || kind == KindIPVLAN || kind == KindNetkit) {
				continue // the mode of another kind; the kernel reports a mode of each ipvlan and netkit
			}
			b := make(nlconn.Body, unix.SizeofIfInfomsg)
			want.AddKind(&b)
			have, err := ParseLink(b)
			if err != nil || have.Kind != kind {
				t.Fatalf("%s: %+v, %v", kind, have, err)
			}
			again := make(nlconn.Body, unix.SizeofIfInfomsg)
			have.AddKind(&again)
			if !bytes.Equal(b, again) {
				t.Errorf("%s: %+v became %+v", kind, want, have)
			}
		}
	}
}

// FuzzRoundTrip checks that an object which was decoded once is not changed by encoding and
// decoding it again. The first time it may lose what the codec does not know.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("\x02\x18\x00\x00\xfe\x02\xfd\x01\x00\x00\x00\x00\x08\x00\x01\x00\x0a\x00\x00\x00"))
	f.Add([]byte((&Rule{Family: unix.AF_INET, From: netip.MustParsePrefix("10.0.0.0/8"), Table: 7, MinBits: 33}).Append(nil)))
	f.Add([]byte((&Nexthop{ID: 7, Hop: Hop{Link: 3}}).Append(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, o := range decoded(b) {
			once := decodedAs(o)
			if once == nil {
				continue // an address of another family than the header's
			}
			if twice := decodedAs(once); !reflect.DeepEqual(once, twice) {
				t.Errorf("%+v became %+v", once, twice)
			}
		}
	})
}
