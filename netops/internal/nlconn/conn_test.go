package nlconn

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzMessages feeds random bytes to the decoders that all netlink protocols
// share.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x24\x00\x00\x00\x02\x00\x00\x03\x01\x00\x00\x00\x00\x00\x00\x00\xed\xff\xff\xff" +
		"\x10\x00\x00\x00\x12\x00\x05\x00\x01\x00\x00\x00\x00\x00\x00\x00"))
	var attrs Body
	attrs.Text(1, "eth0")
	attrs.Uint32(2, 1500)
	f.Add([]byte(attrs))
	f.Fuzz(func(_ *testing.T, b []byte) {
		splitMessages(b, func(h unix.NlMsghdr, data []byte) { _, _ = refusal(h, data), errnoOf(data) })
		_ = EachAttr(b, func(_ uint16, v []byte) error {
			_, _, _, _ = Int(v), Short(v), Byte(v), Text(v)
			return nil
		})
	})
}
