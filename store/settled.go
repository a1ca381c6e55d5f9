package store

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/record"
)

// Settle records that the network's record contains all objects that a role's
// attachments share, given by their names. What is stored is a digest of the
// network's record and the names. So any change of the record ends the settlement,
// and an ADD need not decode the record to compare it.
func (tx *Tx) Settle(network, role string, names []string) error {
	key, err := record.StorableKey("settled role", network, role)
	if err != nil {
		return err
	}
	to, err := record.Writable(tx.b, bucketSettled)
	if err != nil {
		return err
	}
	if err := to.Put(key, tx.settledDigest(network, names)); err != nil {
		return fmt.Errorf("store settled role %q: %w", role, err)
	}
	return nil
}

// Settled reports whether Settle was called with the same names and the network's
// record has not changed since.
func (tx *Tx) Settled(network, role string, names []string) bool {
	stored := record.Raw(tx.b, bucketSettled, record.EncodeKey(network, role))
	return stored != nil && bytes.Equal(stored, tx.settledDigest(network, names))
}

func (tx *Tx) settledDigest(network string, names []string) []byte {
	h := sha256.New()
	h.Write(record.Raw(tx.b, bucketNetworks, record.EncodeKey(network)))
	for _, n := range names {
		h.Write([]byte{0})
		h.Write([]byte(n))
	}
	return h.Sum(nil)[:16]
}

// unsettle deletes what Settle stored for a network.
func unsettle(tx *bolt.Tx, network string) error {
	from := record.Bucket(tx, bucketSettled)
	for _, k := range record.KeysWithPrefix(from, record.EncodeKey(network)) {
		if err := from.Delete(k); err != nil {
			return fmt.Errorf("delete settled roles of network %.80q: %w", network, err)
		}
	}
	return nil
}
