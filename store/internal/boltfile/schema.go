package boltfile

import (
	"bytes"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// schemaVersion is the format of the files that this program writes, and the newest format that it
// reads. minReader is the oldest schema whose programs can read these files. Adding buckets or fields
// changes neither.
const (
	schemaVersion = 1
	minReader     = 1
)

// BucketInfo holds the file's Info under keyInfo and nothing else.
const (
	BucketInfo = "info"
	keyInfo    = "info"
)

// Info describes a file's format and origin.
type Info struct {
	// Schema is the format of the file. MinReader is the oldest schema whose programs can read it.
	Schema    int `json:"schema"`
	MinReader int `json:"minReader"`
	// Program is the version of the binary that made the file.
	Program string    `json:"program,omitempty"`
	BootID  string    `json:"bootID,omitempty"`
	Created time.Time `json:"created"`
}

// ownInfo is the beginning of each Info that this program writes. Every call reads
// the Info first, and this prefix saves decoding it.
const ownInfo = `{"schema":1,"minReader":1,`

// writeInfo creates the buckets of a new file and stores its Info.
func (f *File) writeInfo(tx *bolt.Tx) error {
	for _, name := range f.Buckets {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("make bucket %s: %w", name, err)
		}
	}
	info, err := tx.CreateBucketIfNotExists([]byte(BucketInfo))
	if err != nil {
		return fmt.Errorf("make bucket %s: %w", BucketInfo, err)
	}
	return kv.Put(info, []byte(keyInfo), Info{
		Schema:    schemaVersion,
		MinReader: minReader,
		Program:   f.Program,
		BootID:    f.BootID,
		Created:   time.Now().UTC(),
	})
}

// checkSchema returns an error for a file that only newer programs can read.
func (f *File) checkSchema(tx *bolt.Tx, c *Cache) error {
	raw, err := c.RawInfo(tx)
	if err == nil && bytes.HasPrefix(raw, []byte(ownInfo)) {
		return nil
	}
	info, err := c.Info(tx)
	if err != nil {
		return fmt.Errorf("open %q: %w (%s)", f.Path, err, f.Hint)
	}
	if info.MinReader > schemaVersion {
		return fmt.Errorf("open %q: %w: it needs a program of schema %d, this one has %d: use the newer program %q, or %s",
			f.Path, ErrSchema, info.MinReader, schemaVersion, info.Program, f.Hint)
	}
	return nil
}

// Cache has a file's data that a process keeps between transactions. A nil Cache keeps nothing.
type Cache struct {
	// info is the stored Info, decoded its decoded form; nil before they are read.
	// They are dropped when another process writes to the file.
	info    []byte
	decoded *Info
	// Kept belongs to the caller. It stays when another process writes, so the
	// caller compares it with the file before use.
	Kept any
}

// RawInfo returns the file's Info without decoding it.
func (c *Cache) RawInfo(tx *bolt.Tx) ([]byte, error) {
	if c != nil && c.info != nil {
		return c.info, nil
	}
	raw := kv.Raw(tx, BucketInfo, []byte(keyInfo))
	if raw == nil {
		return nil, fmt.Errorf("%w: it does not say its schema", kv.ErrDamaged)
	}
	if c != nil {
		c.info = bytes.Clone(raw)
	}
	return raw, nil
}

// Info returns the file's Info.
func (c *Cache) Info(tx *bolt.Tx) (Info, error) {
	if c != nil && c.decoded != nil {
		return *c.decoded, nil
	}
	raw, err := c.RawInfo(tx)
	if err != nil {
		return Info{}, err
	}
	var info Info
	if err := coldjson.Unmarshal(raw, &info); err != nil {
		return Info{}, fmt.Errorf("%w: decode its schema: %w", kv.ErrDamaged, err)
	}
	if c != nil {
		c.decoded = &info
	}
	return info, nil
}
