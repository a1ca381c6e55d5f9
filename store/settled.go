package store

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Settle notes for a role of a network's list that the network's record has all that
// the role's attachments share, by its names. The note is a digest of the record and
// the names: a record that anybody writes anew settles nothing, and to see that it is
// the same takes no decoding of it, which every ADD would have to do.
func (tx *Tx) Settle(network, role string, names []string) error {
	key, err := storableKey("settled role", network, role)
	if err != nil {
		return err
	}
	to, err := writable(tx.b, bucketSettled)
	if err != nil {
		return err
	}
	if err := to.Put(key, tx.settledBy(network, names)); err != nil {
		return fmt.Errorf("store settled role %q: %w", role, err)
	}
	return nil
}

// Settled tells whether that was noted, and the record is the same since.
func (tx *Tx) Settled(network, role string, names []string) bool {
	noted := rawRecord(tx.b, bucketSettled, encodeKey(network, role))
	return noted != nil && bytes.Equal(noted, tx.settledBy(network, names))
}

func (tx *Tx) settledBy(network string, names []string) []byte {
	h := sha256.New()
	h.Write(rawRecord(tx.b, bucketNetworks, encodeKey(network)))
	for _, n := range names {
		h.Write([]byte{0})
		h.Write([]byte(n))
	}
	return h.Sum(nil)[:16]
}

// unsettle forgets what was noted of a network.
func unsettle(b *bolt.Tx, network string) error {
	from := bucketOf(b, bucketSettled)
	for _, k := range keysWith(from, encodeKey(network)) {
		if err := from.Delete(k); err != nil {
			return fmt.Errorf("delete settled roles of network %.80q: %w", network, err)
		}
	}
	return nil
}
