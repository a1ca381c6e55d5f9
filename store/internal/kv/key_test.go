package kv

import (
	"bytes"
	"slices"
	"testing"
)

// DecodeKey is the inverse of EncodeKey, whatever bytes follow, and keys sort as
// their texts.
func FuzzKey(f *testing.F) {
	f.Add("net", "c", "eth0", "", "\x00", "\x00\x01")
	f.Add("a", "b", "c", "a", "b", "c\x00")
	f.Fuzz(func(t *testing.T, a, b, c, x, y, z string) {
		k, l := EncodeKey(a, b, c), EncodeKey(x, y, z)
		if want := slices.Compare([]string{a, b, c}, []string{x, y, z}); bytes.Compare(k, l) != want {
			t.Errorf("%q and %q: want %d", k, l, want)
		}
		p, rest, err := DecodeKey(append(slices.Clone(k), l...), 3)
		if err != nil || !slices.Equal(p, []string{a, b, c}) || !bytes.Equal(rest, l) {
			t.Errorf("decode %q: %q, %q, %v", k, p, rest, err)
		}
	})
}

// Any bytes are an error or a key, and texts have only one key.
func FuzzDecodeKey(f *testing.F) {
	f.Add([]byte("net\x00\x01c\x00\xff\x00\x01eth0\x00\x01"))
	f.Add([]byte("net\x00\x01c\x00\x01eth0\x00\x01more"))
	f.Add([]byte("\x00"))
	f.Add([]byte("a\x00\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := DecodeAttachment(b)
		if err == nil && !bytes.Equal(k.Encode(), b) {
			t.Errorf("%q is %q", b, k)
		}
	})
}
