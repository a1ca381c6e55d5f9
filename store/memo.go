package store

import (
	"bytes"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// memo caches decoded records of node.db in this process. Each use compares the stored record, so that
// writes of other processes are noticed. A nil memo caches nothing.
type memo struct {
	// attachment is the attachment's record that was stored or read last.
	attachment kv.Last
	// sources are the decoded cloud sources by their keys.
	sources map[string]*decodedSource
}

// decodedSource is a cloud source and the record that it was decoded from.
type decodedSource struct {
	raw    []byte
	source CloudSource
}

// memoOf returns the memo of an open file.
func memoOf(c *boltfile.Cache) *memo {
	if c == nil {
		return nil
	}
	if c.Kept == nil {
		c.Kept = &memo{}
	}
	return c.Kept.(*memo)
}

// lastAttachment returns the cached record for PutAttachment and Attachment.
func (m *memo) lastAttachment() *kv.Last {
	if m == nil {
		return nil
	}
	return &m.attachment
}

// cloudSource decodes a source, or returns the cached value of an equal record. An ADD reads its source
// twice, and a source has hundreds of addresses.
func (m *memo) cloudSource(key, raw []byte) (CloudSource, error) {
	if m != nil {
		if d := m.sources[string(key)]; d != nil && bytes.Equal(d.raw, raw) {
			return d.source, nil
		}
	}
	var s CloudSource
	if err := kv.Decode(bucketCloud, key, raw, &s); err != nil {
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
