package store

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// ConfirmShared stores that the network's record contains the shared objects with these names of a role's
// attachments. The stored value is a digest of the network's record and the names. So any change of the
// record ends the confirmation, and an ADD does not need to decode the record.
func (tx *Tx) ConfirmShared(network, role string, names []string) error {
	key, err := kv.StorableKey("shared objects of role", network, role)
	if err != nil {
		return err
	}
	to, err := kv.Writable(tx.b, bucketShared)
	if err != nil {
		return err
	}
	if err := to.Put(key, tx.sharedDigest(network, names)); err != nil {
		return fmt.Errorf("store shared objects of role %q: %w", role, err)
	}
	return nil
}

// SharedConfirmed reports whether ConfirmShared was called with the same names and the
// network's record has not changed since.
func (tx *Tx) SharedConfirmed(network, role string, names []string) bool {
	stored := kv.Raw(tx.b, bucketShared, kv.EncodeKey(network, role))
	return stored != nil && bytes.Equal(stored, tx.sharedDigest(network, names))
}

func (tx *Tx) sharedDigest(network string, names []string) []byte {
	h := sha256.New()
	h.Write(kv.Raw(tx.b, bucketNetworks, kv.EncodeKey(network)))
	for _, n := range names {
		h.Write([]byte{0})
		h.Write([]byte(n))
	}
	return h.Sum(nil)[:16]
}

// unconfirmShared deletes the confirmations of a network.
func unconfirmShared(tx *bolt.Tx, network string) error {
	from := kv.Bucket(tx, bucketShared)
	for _, k := range kv.KeysWithPrefix(from, kv.EncodeKey(network)) {
		if err := from.Delete(k); err != nil {
			return fmt.Errorf("delete shared objects of network %.80q: %w", network, err)
		}
	}
	return nil
}
