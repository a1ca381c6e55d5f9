package store

import (
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/record"
)

// A claim's name may have parts that end with "/". A name that ends with "/" stands
// for all names that begin with it: its owner holds all parts, and it cannot be
// claimed while another owner holds a part.

// conflict returns the claim that keeps an owner from a claim: one of the same name,
// of a name that includes it, or of a part of it. It is nil when there is none.
func conflict(claims *bolt.Bucket, kind, name string, owner Key) (*Claim, error) {
	for i := range len(name) {
		if name[i] != '/' || i == len(name)-1 {
			continue
		}
		if c, err := otherClaim(claims, record.EncodeKey(kind, name[:i+1]), owner); c != nil || err != nil {
			return c, err
		}
	}
	key := record.EncodeKey(kind, name)
	if !strings.HasSuffix(name, "/") {
		return otherClaim(claims, key, owner)
	}
	for k := range record.WithPrefix(claims, record.EncodePrefix(kind, name)) {
		if c, err := otherClaim(claims, k, owner); c != nil || err != nil {
			return c, err
		}
	}
	return nil, nil
}

// otherClaim returns the claim under a key; nil if there is none or it is the
// owner's.
func otherClaim(claims *bolt.Bucket, key []byte, owner Key) (*Claim, error) {
	raw := claims.Get(key)
	if raw == nil {
		return nil, nil
	}
	var c Claim
	if err := record.Decode(bucketClaims, key, raw, &c); err != nil || c.Owner == owner {
		return nil, err
	}
	return &c, nil
}

// Holder returns the claim of another owner that keeps an owner from a claim; nil if
// there is none.
func (tx *Tx) Holder(kind, name string, owner Key) (*Claim, error) {
	claims := record.Bucket(tx.b, bucketClaims)
	if claims == nil {
		return nil, nil
	}
	return conflict(claims, kind, name, owner)
}

// isClaimed reports whether the owner has the claim already. A conflicting claim is a
// TakenError.
func isClaimed(claims *bolt.Bucket, key []byte, kind, name string, owner Key) (bool, error) {
	c, err := conflict(claims, kind, name, owner)
	if err != nil {
		return false, err
	}
	if c != nil {
		return false, &TakenError{What: kind + " " + name, Owner: c.Owner}
	}
	return claims.Get(key) != nil, nil
}
