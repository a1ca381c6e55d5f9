package store

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"
)

// Keys are texts, each closed by 00 01, with a 00 inside written as 00 FF. So
// no two lists of texts share a key, none is a prefix of another of the same
// length, and the order of keys is the order of the texts.
const (
	escape     = 0x00
	terminator = 0x01
	escapedNUL = 0xff
)

// maxKey leaves room for what an index appends, below bbolt's limit.
const maxKey = bolt.MaxKeySize - 64

// encodeKey encodes texts as one key.
func encodeKey(parts ...string) []byte {
	n := 0
	for _, p := range parts {
		n += len(p) + 2
	}
	key := make([]byte, 0, n)
	for _, p := range parts {
		for i := range len(p) {
			key = append(key, p[i])
			if p[i] == escape {
				key = append(key, escapedNUL)
			}
		}
		key = append(key, escape, terminator)
	}
	return key
}

// decodeKey is the inverse of encodeKey for n texts; rest is what follows them.
func decodeKey(key []byte, n int) (parts []string, rest []byte, err error) {
	parts = make([]string, 0, n)
	var text []byte
	for len(parts) < n {
		i := bytes.IndexByte(key, escape)
		if i < 0 || i+1 == len(key) {
			return nil, nil, fmt.Errorf("decode key %q: %w: not terminated", key, ErrDamaged)
		}
		text = append(text, key[:i]...)
		switch key[i+1] {
		case terminator:
			parts = append(parts, string(text))
			text = text[:0]
		case escapedNUL:
			text = append(text, escape)
		default:
			return nil, nil, fmt.Errorf("decode key %q: %w: bad escape", key, ErrDamaged)
		}
		key = key[i+2:]
	}
	return parts, key, nil
}

// storableKey encodes texts that are to be written: JSON, the form of the
// records, holds nothing but UTF-8, and bbolt limits a key's size.
func storableKey(what string, parts ...string) ([]byte, error) {
	for _, p := range parts {
		if !utf8.ValidString(p) {
			return nil, fmt.Errorf("store %s %.80q: %w: not UTF-8", what, p, ErrInvalid)
		}
	}
	key := encodeKey(parts...)
	if len(key) > maxKey {
		return nil, fmt.Errorf("store %s: %w: key of %d bytes, at most %d can be stored", what, ErrInvalid, len(key), maxKey)
	}
	return key, nil
}

func (k Key) encode() []byte { return encodeKey(k.Network, k.ContainerID, k.IfName) }

func (k Key) storable(what string) ([]byte, error) {
	return storableKey(what, k.Network, k.ContainerID, k.IfName)
}

func decodeAttachmentKey(b []byte) (Key, error) {
	p, rest, err := decodeKey(b, 3)
	if err != nil {
		return Key{}, err
	}
	if len(rest) > 0 {
		return Key{}, fmt.Errorf("decode key %q: %w: %d bytes too many", b, ErrDamaged, len(rest))
	}
	return Key{Network: p[0], ContainerID: p[1], IfName: p[2]}, nil
}
