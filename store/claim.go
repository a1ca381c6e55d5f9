package store

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/record"
)

// Claim takes a node-wide resource for an attachment. A repeated claim of the owner is not an error
// and keeps its time. If another owner has the resource, the error is a TakenError. A name that ends
// with "/" includes all names that begin with it, and "range 8000-8100/tcp/" includes the names
// "8000/tcp/" to "8100/tcp/".
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
// begin with it: it cannot be claimed while another owner has one of them. A name that begins with
// rangePrefix includes the names with each number of the range.

// rangePrefix begins the names of ranges, so that they are adjacent in the bucket.
const rangePrefix = "range "

// numbered is the meaning of a name that begins with a number or a range of numbers.
type numbered struct {
	first, last uint64
	// rest is the name from its first "/" on.
	rest string
}

// parseNumbered reads "8080/tcp/" and "range 8000-8100/tcp/".
func parseNumbered(name string) (n numbered, ok bool) {
	text, isRange := strings.CutPrefix(name, rangePrefix)
	numbers, rest, found := strings.Cut(text, "/")
	first, last, _ := strings.Cut(numbers, "-")
	if !isRange {
		first, last = numbers, numbers
	}
	var errs [2]error
	n.rest = rest
	n.first, errs[0] = strconv.ParseUint(first, 10, 32)
	n.last, errs[1] = strconv.ParseUint(last, 10, 32)
	return n, found && errs == [2]error{}
}

// overlaps reports whether a name exists that both include.
func (n numbered) overlaps(o numbered) bool {
	covers := func(whole, part string) bool {
		return whole == part || (whole == "" || strings.HasSuffix(whole, "/")) && strings.HasPrefix(part, whole)
	}
	return n.first <= o.last && o.first <= n.last && (covers(n.rest, o.rest) || covers(o.rest, n.rest))
}

// rangeConflict returns the claim of another owner that overlaps with a name, if one of
// both is a range. A node has few ranges, so a number is compared with all of them; a
// range is compared with all claims of the kind.
func rangeConflict(claims *bolt.Bucket, kind, name string, owner Key) (*Claim, error) {
	n, ok := parseNumbered(name)
	if !ok {
		return nil, nil
	}
	prefix := record.EncodePrefix(kind, rangePrefix)
	if strings.HasPrefix(name, rangePrefix) {
		prefix = record.EncodeKey(kind)
	}
	for k := range record.WithPrefix(claims, prefix) {
		parts, _, err := record.DecodeKey(k, 2)
		if err != nil {
			return nil, err
		}
		if o, ok := parseNumbered(parts[1]); !ok || !n.overlaps(o) {
			continue
		}
		if c, err := otherClaim(claims, k, owner); c != nil || err != nil {
			return c, err
		}
	}
	return nil, nil
}

// conflict returns another owner's claim of the same name, of a name that includes it, or of a name
// that it includes. It returns nil if there is none.
func conflict(claims *bolt.Bucket, kind, name string, owner Key) (*Claim, error) {
	if c, err := rangeConflict(claims, kind, name, owner); c != nil || err != nil {
		return c, err
	}
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
