package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/record"
)

// Claim takes a node-wide resource for an attachment. A repeated claim of the owner is not an error
// and keeps its time. If another owner has the resource, the error is a TakenError. A name that ends
// with "/" includes all names that begin with it.
func (tx *Tx) Claim(kind, name string, owner Key, now time.Time) error {
	key, err := record.StorableKey("claim", kind, name)
	if err != nil {
		return err
	}
	index, err := record.StorableKey("claim", owner.Network, owner.ContainerID, owner.IfName, kind, name)
	if err != nil {
		return err
	}
	claims, err := record.Writable(tx.b, bucketClaims)
	if err != nil {
		return err
	}
	owners, err := record.Writable(tx.b, bucketClaimOwners)
	if err != nil {
		return err
	}
	if claimed, err := isClaimed(claims, key, kind, name, owner); err != nil || claimed {
		return err
	}
	if err := record.Put(claims, key, Claim{Kind: kind, Name: name, Owner: owner, Time: now}); err != nil {
		return err
	}
	if err := owners.Put(index, nil); err != nil {
		return fmt.Errorf("store claim %q %q: %w", kind, name, err)
	}
	return nil
}

// Unclaim releases the owner's claims, all or those of the given kinds.
func (tx *Tx) Unclaim(owner Key, kinds ...string) error {
	claims, err := record.Writable(tx.b, bucketClaims)
	if err != nil {
		return err
	}
	owners, err := record.Writable(tx.b, bucketClaimOwners)
	if err != nil {
		return err
	}
	prefix := owner.Encode()
	prefixes := [][]byte{nil} // of every kind
	if len(kinds) > 0 {
		prefixes = nil
	}
	for _, k := range kinds {
		prefixes = append(prefixes, record.EncodeKey(k))
	}
	for _, kind := range prefixes {
		for _, index := range record.KeysWithPrefix(owners, slices.Concat(prefix, kind)) {
			if err := errors.Join(claims.Delete(index[len(prefix):]), owners.Delete(index)); err != nil {
				return fmt.Errorf("delete claims: %w", err)
			}
		}
	}
	return nil
}

// Claims returns the claims of a kind, or all with "", by kind and name. Damaged
// records are handled as in Attachments.
func (tx *Tx) Claims(kind string) ([]Claim, error) {
	return record.List[Claim](tx.b, bucketClaims, record.NetworkPrefix(kind))
}

// A claim's name may have parts that end with "/". A name that ends with "/" includes all names that
// begin with it: it cannot be claimed while another owner has one of them.

// conflict returns another owner's claim of the same name, of a name that includes it, or of a name
// that it includes. It returns nil if there is none.
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

// otherClaim returns the claim under a key, or nil if there is none or it is the owner's.
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

// Holder returns the claim of another owner that conflicts with a claim, or nil.
func (tx *Tx) Holder(kind, name string, owner Key) (*Claim, error) {
	claims := record.Bucket(tx.b, bucketClaims)
	if claims == nil {
		return nil, nil
	}
	return conflict(claims, kind, name, owner)
}

// isClaimed reports whether the owner has the claim. For a conflicting claim it returns a TakenError.
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
