package netops

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzParse feeds the decoders of what the kernel sends.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Add([]byte("\x02\x18\x00\x00\xfe\x02\xfd\x01\x00\x00\x00\x00\x08\x00\x01\x00\x0a\x00\x00\x00\x0c\x00\x09\x00\x08\x00\x00\x01\x02\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseLink(b)
		_, _, _ = parseAddr(b)
		_, _ = parseRoute(b)
		_, _, _ = parseRule(b)
		_, _, _ = parseNeigh(b, 1)
		_ = vlanSet{}.parseEntry(vlanEntry, b)
		splitMessages(b, func(h unix.NlMsghdr, data []byte) { _ = refusal(h, data) })
	})
}
