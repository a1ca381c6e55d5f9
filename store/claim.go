package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// Claim takes a resource for an attachment. A repeated claim of the owner is not an error and keeps its
// time. If another owner has the resource, or a part of it, the error is a TakenError.
func (tx *Tx) Claim(r Resource, owner Key, now time.Time) error {
	key, err := kv.StorableKey("claim", r.Kind, r.name())
	if err != nil {
		return err
	}
	index, err := kv.StorableKey("claim", owner.Network, owner.ContainerID, owner.IfName, r.Kind, r.name())
	if err != nil {
		return err
	}
	claims, err := kv.Writable(tx.b, bucketClaims)
	if err != nil {
		return err
	}
	owners, err := kv.Writable(tx.b, bucketClaimOwners)
	if err != nil {
		return err
	}
	taken, err := tx.Holder(r, owner)
	if err != nil {
		return err
	}
	if taken != nil {
		return taken
	}
	if claims.Get(key) != nil {
		return nil
	}
	if err := kv.Put(claims, key, Claim{Kind: r.Kind, Name: r.name(), Owner: owner, Time: now}); err != nil {
		return err
	}
	if err := owners.Put(index, nil); err != nil {
		return fmt.Errorf("store claim on %s: %w", r, err)
	}
	return nil
}

// Unclaim releases the owner's claims, all or those of the given kinds.
func (tx *Tx) Unclaim(owner Key, kinds ...string) error {
	claims, err := kv.Writable(tx.b, bucketClaims)
	if err != nil {
		return err
	}
	owners, err := kv.Writable(tx.b, bucketClaimOwners)
	if err != nil {
		return err
	}
	prefix := owner.Encode()
	prefixes := [][]byte{nil} // of every kind
	if len(kinds) > 0 {
		prefixes = nil
	}
	for _, k := range kinds {
		prefixes = append(prefixes, kv.EncodeKey(k))
	}
	for _, kind := range prefixes {
		for _, index := range kv.KeysWithPrefix(owners, slices.Concat(prefix, kind)) {
			if err := errors.Join(claims.Delete(index[len(prefix):]), owners.Delete(index)); err != nil {
				return fmt.Errorf("delete claims: %w", err)
			}
		}
	}
	return nil
}

// HandOver gives ports that nobody has to the attachments of from's container that await them, but not to from, whose claims
// were released. It reports whether one has got ports, now or from an earlier call.
func (tx *Tx) HandOver(from Key, now time.Time) (bool, error) {
	var awaited []Claim
	for key, raw := range kv.WithPrefix(kv.Bucket(tx.b, bucketClaims), kv.EncodePrefix(KindAwaited, awaitedPrefix(from))) {
		var c Claim
		if err := kv.Decode(bucketClaims, key, raw, &c); err != nil {
			return false, err
		}
		awaited = append(awaited, c)
	}
	handed := false
	for _, c := range awaited {
		fields := strings.SplitN(c.Name, " ", 4)
		p, ok := parsePorts(fields[len(fields)-1])
		if !ok || c.Owner == from {
			continue
		}
		r := Resource{Kind: KindPort, Ports: p}
		taken, err := tx.Holder(r, Key{}) // also c.Owner
		if err == nil && taken == nil {
			err = tx.Claim(r, c.Owner, now)
		}
		if err != nil {
			return handed, err
		}
		handed = handed || taken == nil || taken.Owner == c.Owner
	}
	return handed, nil
}

// Awaits reports whether an attachment of a container awaits ports.
func (tx *Tx) Awaits(containerID string) bool {
	for range kv.WithPrefix(kv.Bucket(tx.b, bucketClaims), kv.EncodePrefix(KindAwaited, awaitedPrefix(Key{ContainerID: containerID}))) {
		return true
	}
	return false
}

// Claims returns the claims of a kind, or all with "", by kind and name. Damaged
// records are handled as in Attachments.
func (tx *Tx) Claims(kind string) ([]Claim, error) {
	return kv.List[Claim](tx.b, bucketClaims, kv.NetworkPrefix(kind))
}

// conflict returns another owner's claim of the same resource, or of ports that overlap with it. It returns
// nil if there is none.
func conflict(claims *bolt.Bucket, r Resource, owner Key) (*Claim, error) {
	if r.Ports == (Ports{}) {
		return otherClaim(claims, kv.EncodeKey(r.Kind, r.Name), owner)
	}
	for _, prefix := range r.Ports.neighbours() {
		for k := range kv.WithPrefix(claims, kv.EncodePrefix(r.Kind, prefix)) {
			parts, _, err := kv.DecodeKey(k, 2)
			if err != nil {
				return nil, err
			}
			if o, ok := parsePorts(parts[1]); !ok || !r.Ports.overlaps(o) {
				continue
			}
			if c, err := otherClaim(claims, k, owner); c != nil || err != nil {
				return c, err
			}
		}
	}
	return nil, nil
}

// otherClaim returns the claim under a key, or nil if there is none or it is the owner's.
func otherClaim(claims *bolt.Bucket, key []byte, owner Key) (*Claim, error) {
	if claims == nil {
		return nil, nil
	}
	raw := claims.Get(key)
	if raw == nil {
		return nil, nil
	}
	var c Claim
	if err := kv.Decode(bucketClaims, key, raw, &c); err != nil || c.Owner == owner {
		return nil, err
	}
	return &c, nil
}

// Holder returns a TakenError with the claim of another owner that conflicts with a claim on a resource, or nil.
func (tx *Tx) Holder(r Resource, owner Key) (*TakenError, error) {
	c, err := conflict(kv.Bucket(tx.b, bucketClaims), r, owner)
	if c == nil || err != nil {
		return nil, err
	}
	return &TakenError{What: r.String(), Owner: c.Owner}, nil
}
