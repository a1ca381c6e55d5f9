package kv

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"
)

// Key identifies an attachment: one interface of one container on one network.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Encode returns the key under which the attachment's records are stored.
func (k Key) Encode() []byte { return EncodeKey(k.Network, k.ContainerID, k.IfName) }

// Storable is like Encode, but returns ErrInvalid if the names cannot be stored. what is the record's
// name in the error.
func (k Key) Storable(what string) ([]byte, error) {
	return StorableKey(what, k.Network, k.ContainerID, k.IfName)
}

// Describe returns the attachment's names for an error message.
func (k Key) Describe() string {
	return fmt.Sprintf("%.80q of container %.80q on network %.80q", k.IfName, k.ContainerID, k.Network)
}

// DecodeAttachment is the inverse of Key.Encode.
func DecodeAttachment(b []byte) (Key, error) {
	p, rest, err := DecodeKey(b, 3)
	if err != nil {
		return Key{}, err
	}
	if len(rest) > 0 {
		return Key{}, fmt.Errorf("decode key %q: %w: %d bytes too many", b, ErrDamaged, len(rest))
	}
	return Key{Network: p[0], ContainerID: p[1], IfName: p[2]}, nil
}

// A key is a list of texts. Each text ends with 00 01, and a 00 byte in it is written as 00 FF. So two
// different lists have different keys, no key is a prefix of another with the same number of texts, and
// keys have the order of the lists.
const (
	escape     = 0x00
	terminator = 0x01
	escapedNUL = 0xff
)

// maxKey leaves room below bbolt's limit for the parts that an index appends.
const maxKey = bolt.MaxKeySize - 64

// EncodeKey encodes texts as one key.
func EncodeKey(parts ...string) []byte {
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

// EncodePrefix returns the prefix of all keys that begin with these texts. Only the last text may be
// incomplete.
func EncodePrefix(parts ...string) []byte {
	key := EncodeKey(parts...)
	return key[:len(key)-2]
}

// NetworkPrefix returns the prefix of a network's keys. For "" it returns nil, the prefix of all keys.
func NetworkPrefix(network string) []byte {
	if network == "" {
		return nil
	}
	return EncodeKey(network)
}

// DecodeKey decodes the first n texts of a key. rest is the remaining part of the key.
func DecodeKey(key []byte, n int) (parts []string, rest []byte, err error) {
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

// StorableKey encodes texts for writing. It returns ErrInvalid for a text that is not UTF-8, because JSON
// cannot represent it, and for a key that is too long for bbolt.
func StorableKey(what string, parts ...string) ([]byte, error) {
	for _, p := range parts {
		if !utf8.ValidString(p) {
			return nil, fmt.Errorf("store %s %.80q: %w: not UTF-8", what, p, ErrInvalid)
		}
	}
	key := EncodeKey(parts...)
	if len(key) > maxKey {
		return nil, fmt.Errorf("store %s: %w: key of %d bytes, at most %d can be stored", what, ErrInvalid, len(key), maxKey)
	}
	return key, nil
}
