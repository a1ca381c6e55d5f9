package rtnl

import (
	"maps"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzVLANs encodes what was read from a message, and reads it again.
func FuzzVLANs(f *testing.F) {
	f.Add([]byte{})
	for _, s := range []VLANs{{1: 6}, {1: 6, 2: 0, 3: 0, 4: 4}, {10: 4, 11: 4, 12: 2, 13: 2, MaxVLAN: 0}} {
		m := s.Message(unix.RTM_NEWVLAN, 3)
		f.Add([]byte(m.Body))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := VLANs{}
		if s.parse(b) != nil {
			return
		}
		again, m := VLANs{}, s.Message(unix.RTM_NEWVLAN, 3)
		if err := again.parse(m.Body); err != nil || !maps.Equal(again, s) {
			t.Errorf("%v, %v, want %v", again, err, s)
		}
	})
}
