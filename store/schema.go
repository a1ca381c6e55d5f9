package store

import (
	"bytes"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// schemaVersion is the form of the files that this program writes, and the
// newest that it reads. minReader is the oldest program's that reads it too:
// added buckets and fields leave it alone.
const (
	schemaVersion = 1
	minReader     = 1
)

// Buckets, with what their keys are made of.
const (
	bucketInfo        = "info"        // keyInfo alone
	bucketAttachments = "attachments" // network, container ID, interface
	bucketNetworks    = "networks"    // name
	bucketSettled     = "settled"     // network's name, role; see Tx.Settle
	bucketClaims      = "claims"      // kind, name
	bucketClaimOwners = "claimOwners" // owner's network, container ID, interface; kind, name
	bucketPools       = "pools"       // network, data directory; each a bucket, see Pool
	bucketMarks       = "marks"       // kind, name (keep.db)

	keyInfo = "info"
)

// Info is what a file says about itself.
type Info struct {
	// Schema is the form of the file, MinReader the oldest schema whose
	// programs can read it.
	Schema    int `json:"schema"`
	MinReader int `json:"minReader"`
	// Program is the version of the binary that made the file.
	Program string    `json:"program,omitempty"`
	BootID  string    `json:"bootID,omitempty"`
	Created time.Time `json:"created"`
}

// writeInfo makes the buckets of a new file.
func (f *file) writeInfo(b *bolt.Tx) error {
	buckets := []string{bucketAttachments, bucketNetworks, bucketClaims, bucketClaimOwners, bucketPools}
	if f.kept {
		buckets = []string{bucketMarks}
	}
	for _, name := range buckets {
		if _, err := b.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("make bucket %s: %w", name, err)
		}
	}
	info, err := b.CreateBucketIfNotExists([]byte(bucketInfo))
	if err != nil {
		return fmt.Errorf("make bucket %s: %w", bucketInfo, err)
	}
	return putRecord(info, []byte(keyInfo), Info{
		Schema:    schemaVersion,
		MinReader: minReader,
		Program:   f.s.o.Program,
		BootID:    f.s.o.BootID,
		Created:   time.Now().UTC(),
	})
}

// ownInfo is the begin of the Info that this program writes: what every call reads
// first is not decoded to find two numbers in it.
const ownInfo = `{"schema":1,"minReader":1,`

// infoRecord returns the file's Info as it stands there.
func infoRecord(b *bolt.Tx) ([]byte, error) {
	if bucket := b.Bucket([]byte(bucketInfo)); bucket != nil {
		if raw := bucket.Get([]byte(keyInfo)); raw != nil {
			return raw, nil
		}
	}
	return nil, fmt.Errorf("%w: it does not say its schema", ErrDamaged)
}

func decodeInfo(raw []byte) (Info, error) {
	var info Info
	if err := coldjson.Unmarshal(raw, &info); err != nil {
		return Info{}, fmt.Errorf("%w: decode its schema: %w", ErrDamaged, err)
	}
	return info, nil
}

// checkSchema refuses a file that only newer programs can read.
func (f *file) checkSchema(b *bolt.Tx, m *memo) error {
	raw, err := m.infoRecord(b)
	if err == nil && bytes.HasPrefix(raw, []byte(ownInfo)) {
		return nil
	}
	info, err := m.readInfo(b)
	if err != nil {
		return fmt.Errorf("open %q: %w (%s)", f.path, err, f.hint)
	}
	if info.MinReader > schemaVersion {
		return fmt.Errorf("open %q: %w: it needs a program of schema %d, this one has %d: use the newer program %q, or %s",
			f.path, ErrSchema, info.MinReader, schemaVersion, info.Program, f.hint)
	}
	return nil
}
