package netops

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// FuzzParse tests the netlink decoders of takeovers.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Add([]byte("\x02\x18\x00\x00\xfe\x02\xfd\x01\x00\x00\x00\x00\x08\x00\x01\x00\x0a\x00\x00\x00\x0c\x00\x09\x00\x08\x00\x00\x01\x02\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if r, _, err := parsePlacedRoute(b, 1); err == nil && r.kind != 0 {
			_, _ = r.add(moveTarget{expires: true}), r.del()
		}
		if state, ok, err := rtnl.ParseAddr(b); ok && err == nil {
			if raw, err := readRaw(b, unix.SizeofIfAddrmsg); err == nil {
				a := placedAddr{raw, state}
				_, _ = a.add(moveTarget{expires: true}), a.del()
			}
		}
	})
}
