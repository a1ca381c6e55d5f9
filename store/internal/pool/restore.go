package pool

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// RestoreSticky stores one entry of a damaged file: a reservation, whose index it makes
// anew, or the boot in which the pool was used. It is false for other entries. The
// bucket's name is the encoded pool.
func RestoreSticky(tx *bolt.Tx, bucket, key, value []byte) (bool, error) {
	if len(key) == 0 || key[0] != reservationKind && key[0] != bootKind {
		return false, nil
	}
	names, rest, err := kv.DecodeKey(bucket, 2)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("decode key %q of %s: %w", bucket, StickyBucket, kv.ErrDamaged)
	}
	if err != nil {
		return false, err
	}
	p, err := OpenSticky(tx, ID{Network: names[0], DataDir: names[1]})
	if err != nil {
		return false, err
	}
	if key[0] == bootKind {
		return false, p.SetBoot(string(value))
	}
	var r Reservation
	if err := kv.Decode(p.name(), key, value, &r); err != nil {
		return false, err
	}
	r.Identity = string(key[1:])
	err = p.Put(&r)
	return err == nil, err
}
