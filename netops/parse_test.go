package netops

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkOfKind is the body of an RTM_NEWLINK with a kind and its attributes.
func linkOfKind(kind, data string) []byte {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.ZeroTerminated(kind))
	info.AddRtAttr(nl.IFLA_INFO_DATA, []byte(data))
	return append(make([]byte, unix.SizeofIfInfomsg), info.Serialize()...)
}

// FuzzParse feeds the decoders of what the kernel sends.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Add([]byte("\x02\x18\x00\x00\xfe\x02\xfd\x01\x00\x00\x00\x00\x08\x00\x01\x00\x0a\x00\x00\x00\x0c\x00\x09\x00\x08\x00\x00\x01\x02\x00\x00\x00"))
	f.Add(linkOfKind("macvlan", "\x08\x00\x01\x00\x04\x00\x00\x00\x08\x00\x07\x00\xe8\x03\x00\x00"))
	f.Add(linkOfKind("ipvlan", "\x06\x00\x01\x00\x01\x00\x00\x00"))
	f.Add(linkOfKind("vrf", "\x08\x00\x01\x00\x0a\x00\x00\x00"))
	f.Add(linkOfKind("vlan", "\x06\x00\x01\x00\xfe\x0f\x00\x00"))
	f.Add(linkOfKind("tun", "\x08\x00\x01\x00\xff\xff\xff\xff\x05\x00\x03\x00\x02\x00\x00\x00\x05\x00\x07\x00\x01\x00\x00\x00"))
	f.Add([]byte("\x02\x00\x00\x00\x34\x00\x01\x80\x14\x00\x01\x80\x08\x00\x01\x00\xc6\x33\x64\x02\x08\x00\x02\x00\xc0\x00\x02\x01" +
		"\x1c\x00\x02\x80\x05\x00\x01\x00\x11\x00\x00\x00\x06\x00\x02\x00\x30\x39\x00\x00\x06\x00\x03\x00\x00\x35\x00\x00\x08\x00\x0c\x00\x01\x02\x03\x04"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseLink(b)
		_, _, _ = parseAddr(b)
		_, _ = parseRoute(b)
		if r, _, err := parsePlacedRoute(b, 1); err == nil && r.kind != 0 {
			_, _ = r.add(on{expires: true}), r.del()
		}
		if state, ok, err := parseAddr(b); ok && err == nil {
			if raw, err := readRaw(b, unix.SizeofIfAddrmsg); err == nil {
				a := placedAddr{raw, state}
				_, _ = a.add(on{expires: true}), a.del()
			}
		}
		_, _, _ = parseRule(b)
		_, _, _ = parseNeigh(b, 1)
		_, _ = parseFlow(b)
		_ = vlanSet{}.parseEntry(vlanEntry, b)
	})
}
