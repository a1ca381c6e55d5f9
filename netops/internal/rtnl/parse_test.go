package rtnl

import (
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
	f.Add(linkOfKind("vrf", "\x08\x00\x01\x00\x0a\x00\x00\x00"))
	f.Add(linkOfKind("vlan", "\x06\x00\x01\x00\xfe\x0f\x00\x00"))
	f.Add(linkOfKind("tun", "\x08\x00\x01\x00\xff\xff\xff\xff\x05\x00\x03\x00\x02\x00\x00\x00\x05\x00\x07\x00\x01\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = ParseLink(b)
		_, _, _ = ParseAddr(b)
		_, _ = ParseRoute(b)
		_, _ = parseRule(b)
		_, _ = ParseNeigh(b)
		_, _ = parseNamespaceID(b)
	})
}
