package store

import (
	"bytes"
	"fmt"
	"reflect"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// memo is what this process knows of a file from its last transactions on it, as
// long as no other process wrote. A nil memo knows nothing.
type memo struct {
	// info is nil before the first transaction.
	info *Info
	// wrote is the record of type wroteType that was stored last. It has no
	// unknown field.
	wrote     []byte
	wroteType reflect.Type
	// sources are those that were decoded, by their keys.
	sources map[string]*decodedSource
}

// decodedSource is a cloud's source and what it was decoded from.
type decodedSource struct {
	raw    []byte
	source CloudSource
}

// cloudSource decodes a source, or gives what an equal record was decoded as: an ADD
// reads its source twice, and it has hundreds of addresses.
func (m *memo) cloudSource(key, raw []byte) (CloudSource, error) {
	if m != nil {
		if d := m.sources[string(key)]; d != nil && bytes.Equal(d.raw, raw) {
			return d.source, nil
		}
	}
	var s CloudSource
	if err := decodeRecord(bucketCloud, key, raw, &s); err != nil {
		return s, err
	}
	if m != nil {
		if m.sources == nil {
			m.sources = map[string]*decodedSource{}
		}
		m.sources[string(key)] = &decodedSource{bytes.Clone(raw), s}
	}
	return s, nil
}

// readInfo is [readInfo], once.
func (m *memo) readInfo(b *bolt.Tx) (Info, error) {
	if m != nil && m.info != nil {
		return *m.info, nil
	}
	info, err := readInfo(b)
	if m != nil && err == nil {
		m.info = &info
	}
	return info, err
}

// putRecord is [putRecord]. A record that was written here is not decoded in
// search of unknown fields, as an ADD's is when it is done.
func (m *memo) putRecord(b *bolt.Bucket, key []byte, rec any) error {
	raw, err := coldjson.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode record %.200q: %w: %w", key, ErrInvalid, err)
	}
	t := reflect.TypeOf(rec)
	old := b.Get(key)
	own := old == nil || m != nil && m.wroteType == t && bytes.Equal(m.wrote, old)
	if !own {
		raw = keepUnknown(old, raw, t)
	}
	if err := b.Put(key, raw); err != nil {
		return fmt.Errorf("store record %.200q: %w", key, err)
	}
	if m != nil && own {
		m.wrote, m.wroteType = raw, t
	}
	return nil
}
