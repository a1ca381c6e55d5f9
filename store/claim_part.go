package store

import (
	"bytes"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// Claims' names may have parts, closed by "/": a name that ends with "/" stands
// for all that begins with it. Whoever has the whole has its parts, and nobody
// can have the whole while another has a part.

// holder is who has what keeps an owner from a claim: the name itself, a whole
// that it is part of, or a part of it; nil for nobody.
func holder(claims *bolt.Bucket, kind, name string, owner Key) (*Claim, error) {
	for i := range len(name) {
		if name[i] != '/' || i == len(name)-1 {
			continue
		}
		if c, err := othersClaim(claims, encodeKey(kind, name[:i+1]), owner); c != nil || err != nil {
			return c, err
		}
	}
	key := encodeKey(kind, name)
	if !strings.HasSuffix(name, "/") {
		return othersClaim(claims, key, owner)
	}
	below := key[:len(key)-2] // without the terminator
	c := claims.Cursor()
	for k, _ := c.Seek(below); k != nil && bytes.HasPrefix(k, below); k, _ = c.Next() {
		if c, err := othersClaim(claims, k, owner); c != nil || err != nil {
			return c, err
		}
	}
	return nil, nil
}

// othersClaim is the claim under a key, nil if there is none or it is the owner's.
func othersClaim(claims *bolt.Bucket, key []byte, owner Key) (*Claim, error) {
	raw := claims.Get(key)
	if raw == nil {
		return nil, nil
	}
	var c Claim
	if err := decodeRecord(bucketClaims, key, raw, &c); err != nil || c.Owner == owner {
		return nil, err
	}
	return &c, nil
}

// Holder is the claim of another that keeps an owner from one; nil if there is none.
func (tx *Tx) Holder(kind, name string, owner Key) (*Claim, error) {
	claims := bucketOf(tx.b, bucketClaims)
	if claims == nil {
		return nil, nil
	}
	return holder(claims, kind, name, owner)
}

// isClaimed tells whether a claim that nobody else has is the owner's already.
func isClaimed(claims *bolt.Bucket, key []byte, kind, name string, owner Key) (bool, error) {
	c, err := holder(claims, kind, name, owner)
	if err != nil {
		return false, err
	}
	if c != nil {
		return false, &TakenError{What: kind + " " + name, Owner: c.Owner}
	}
	return claims.Get(key) != nil, nil
}
