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
	// info is the file's Info as it stands there, nil before the first transaction.
	info []byte
	// decoded is nil before it is asked for.
	decoded *Info
	// known is the record of type knownType that was stored or read last. It has no
	// unknown field.
	known     []byte
	knownType reflect.Type
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

// lasting is what stays known when another process wrote.
func (m *memo) lasting() *memo {
	return &memo{known: m.known, knownType: m.knownType, sources: m.sources}
}

// infoRecord is [infoRecord], once.
func (m *memo) infoRecord(b *bolt.Tx) ([]byte, error) {
	if m == nil {
		return infoRecord(b)
	}
	if m.info == nil {
		raw, err := infoRecord(b)
		if err != nil {
			return nil, err
		}
		m.info = bytes.Clone(raw)
	}
	return m.info, nil
}

// readInfo decodes the file's Info, once.
func (m *memo) readInfo(b *bolt.Tx) (Info, error) {
	if m != nil && m.decoded != nil {
		return *m.decoded, nil
	}
	raw, err := m.infoRecord(b)
	if err != nil {
		return Info{}, err
	}
	info, err := decodeInfo(raw)
	if m != nil && err == nil {
		m.decoded = &info
	}
	return info, err
}

// attachment is [decodeRecord] for an attachment's.
func (m *memo) attachment(key, raw []byte, a *Attachment) error {
	if !coldjson.UnmarshalKnown(raw, a) {
		return decodeRecord(bucketAttachments, key, raw, a)
	}
	if m != nil {
		m.known, m.knownType = bytes.Clone(raw), reflect.TypeOf(a)
	}
	return nil
}

// putRecord is [putRecord]. A record that was written or read here is not decoded
// in search of unknown fields, as an ADD's is when it is done.
func (m *memo) putRecord(b *bolt.Bucket, key []byte, rec any) error {
	raw, err := coldjson.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode record %.200q: %w: %w", key, ErrInvalid, err)
	}
	t := reflect.TypeOf(rec)
	old := b.Get(key)
	own := old == nil || m != nil && m.knownType == t && bytes.Equal(m.known, old)
	if !own {
		raw = keepUnknown(old, raw, t)
	}
	if err := b.Put(key, raw); err != nil {
		return fmt.Errorf("store record %.200q: %w", key, err)
	}
	if m != nil && own {
		m.known, m.knownType = raw, t
	}
	return nil
}
