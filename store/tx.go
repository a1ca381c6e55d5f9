package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Tx is one transaction on node.db. It and all that it returned to iterate with
// are valid only within the function that got it.
type Tx struct {
	// b is nil when there is no file.
	b *bolt.Tx
	// memo is nil for a file that is being made.
	memo *memo
	// now is Options.Now.
	now func() time.Time
}

// clock is the time to note.
func (tx *Tx) clock() time.Time {
	if tx.now == nil {
		return time.Now()
	}
	return tx.now()
}

var errReadOnly = errors.New("transaction is read-only")

// bucketOf returns a bucket to read, or nil.
func bucketOf(b *bolt.Tx, name string) *bolt.Bucket {
	if b == nil {
		return nil
	}
	return b.Bucket([]byte(name))
}

// writable returns a bucket to write.
func writable(b *bolt.Tx, name string) (*bolt.Bucket, error) {
	if b == nil || !b.Writable() {
		return nil, fmt.Errorf("write to %s: %w", name, errReadOnly)
	}
	bucket, err := b.CreateBucketIfNotExists([]byte(name))
	if err != nil {
		return nil, fmt.Errorf("make bucket %s: %w", name, err)
	}
	return bucket, nil
}

// rawRecord is one record as it stands there; nil without it.
func rawRecord(b *bolt.Tx, bucket string, key []byte) []byte {
	from := bucketOf(b, bucket)
	if from == nil {
		return nil
	}
	return from.Get(key)
}

// get decodes one record; ErrNotFound without it.
func get(b *bolt.Tx, bucket string, key []byte, into any) error {
	raw := rawRecord(b, bucket, key)
	if raw == nil {
		return ErrNotFound
	}
	return decodeRecord(bucket, key, raw, into)
}

// remove deletes one record; none is fine.
func remove(b *bolt.Tx, bucket string, key []byte) error {
	from, err := writable(b, bucket)
	if err != nil {
		return err
	}
	if err := from.Delete(key); err != nil {
		return fmt.Errorf("delete from %s: %w", bucket, err)
	}
	return nil
}

// scan decodes the records whose keys begin with prefix, in order of keys.
// Those that cannot be decoded are left out and named in the error.
func scan[T any](b *bolt.Tx, bucket string, prefix []byte, each func(key []byte, rec T) error) error {
	from := bucketOf(b, bucket)
	if from == nil {
		return nil
	}
	var faults []error
	c := from.Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if v == nil {
			continue
		}
		var rec T
		err := decodeRecord(bucket, k, v, &rec)
		if err == nil {
			err = each(k, rec)
		}
		if err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// FileID tells a file from the next one in its place; it is empty without a file. It is
// what the file says of itself, not decoded.
func (tx *Tx) FileID() (string, error) {
	if tx.b == nil {
		return "", nil
	}
	raw, err := tx.memo.infoRecord(tx.b)
	return string(raw), err
}

// Info returns what the file says of itself; without a file all is zero.
func (tx *Tx) Info() (Info, error) {
	if tx.b == nil {
		return Info{}, nil
	}
	return tx.memo.readInfo(tx.b)
}

// Attachment returns an attachment's record, or an error that is ErrNotFound.
func (tx *Tx) Attachment(k Key) (*Attachment, error) {
	key := k.encode()
	raw := rawRecord(tx.b, bucketAttachments, key)
	if raw == nil {
		return nil, &absentError{k}
	}
	var a Attachment
	if err := tx.memo.attachment(key, raw, &a); err != nil {
		return nil, fmt.Errorf("attachment %s: %w", k.describe(), err)
	}
	a.Key = k
	return &a, nil
}

// PutAttachment stores an attachment's record, in place of an older one. Names
// that are not UTF-8 or too long for a key, about 10 kB each, are ErrInvalid.
func (tx *Tx) PutAttachment(a *Attachment) error {
	key, err := a.storable("attachment")
	if err != nil {
		return err
	}
	to, err := writable(tx.b, bucketAttachments)
	if err != nil {
		return err
	}
	return tx.memo.putRecord(to, key, a)
}

// DeleteAttachment deletes an attachment's record; none is fine.
func (tx *Tx) DeleteAttachment(k Key) error {
	return remove(tx.b, bucketAttachments, k.encode())
}

// Attachments returns the attachments of a network, or of all with "", ordered
// by network, container ID and interface name. Records that cannot be decoded
// are left out; the error, which is ErrDamaged then, names them.
func (tx *Tx) Attachments(network string) ([]Attachment, error) {
	var prefix []byte
	if network != "" {
		prefix = encodeKey(network)
	}
	var all []Attachment
	err := scan(tx.b, bucketAttachments, prefix, func(key []byte, a Attachment) error {
		k, err := decodeAttachmentKey(key)
		if err != nil {
			return err
		}
		a.Key = k
		all = append(all, a)
		return nil
	})
	return all, err
}

// Attached tells whether a network has an attachment. It decodes none.
func (tx *Tx) Attached(network string) bool {
	from := bucketOf(tx.b, bucketAttachments)
	if from == nil {
		return false
	}
	prefix := encodeKey(network)
	k, _ := from.Cursor().Seek(prefix)
	return bytes.HasPrefix(k, prefix)
}

// Network returns a network's record, or an error that is ErrNotFound.
func (tx *Tx) Network(name string) (*Network, error) {
	var n Network
	if err := get(tx.b, bucketNetworks, encodeKey(name), &n); err != nil {
		return nil, fmt.Errorf("network %.80q: %w", name, err)
	}
	n.Name = name
	return &n, nil
}

// PutNetwork stores a network's record, in place of an older one.
func (tx *Tx) PutNetwork(n *Network) error {
	key, err := storableKey("network", n.Name)
	if err != nil {
		return err
	}
	to, err := writable(tx.b, bucketNetworks)
	if err != nil {
		return err
	}
	return putRecord(to, key, n)
}

// DeleteNetwork deletes a network's record; none is fine.
func (tx *Tx) DeleteNetwork(name string) error {
	if err := remove(tx.b, bucketNetworks, encodeKey(name)); err != nil {
		return err
	}
	return unsettle(tx.b, name)
}

// Networks returns all networks by name. Damaged records are treated as in
// Attachments.
func (tx *Tx) Networks() ([]Network, error) {
	var all []Network
	err := scan(tx.b, bucketNetworks, nil, func(_ []byte, n Network) error {
		all = append(all, n)
		return nil
	})
	return all, err
}

// Claim takes a node-wide thing for an attachment. Its own claim again is fine
// and keeps the first time; another's is a TakenError. A name that ends with "/"
// is all of the names that begin with it.
func (tx *Tx) Claim(kind, name string, owner Key, now time.Time) error {
	key, err := storableKey("claim", kind, name)
	if err != nil {
		return err
	}
	index, err := storableKey("claim", owner.Network, owner.ContainerID, owner.IfName, kind, name)
	if err != nil {
		return err
	}
	claims, err := writable(tx.b, bucketClaims)
	if err != nil {
		return err
	}
	owners, err := writable(tx.b, bucketClaimOwners)
	if err != nil {
		return err
	}
	if mine, err := isClaimed(claims, key, kind, name, owner); err != nil || mine {
		return err
	}
	if err := putRecord(claims, key, Claim{Kind: kind, Name: name, Owner: owner, Time: now}); err != nil {
		return err
	}
	if err := owners.Put(index, nil); err != nil {
		return fmt.Errorf("store claim %q %q: %w", kind, name, err)
	}
	return nil
}

// Unclaim gives back what the owner claimed, of the given kinds or all.
func (tx *Tx) Unclaim(owner Key, kinds ...string) error {
	claims, err := writable(tx.b, bucketClaims)
	if err != nil {
		return err
	}
	owners, err := writable(tx.b, bucketClaimOwners)
	if err != nil {
		return err
	}
	prefix := owner.encode()
	wanted := [][]byte{nil}
	if len(kinds) > 0 {
		wanted = nil
	}
	for _, k := range kinds {
		wanted = append(wanted, encodeKey(k))
	}
	for _, kind := range wanted {
		for _, index := range keysWith(owners, slices.Concat(prefix, kind)) {
			if err := errors.Join(claims.Delete(index[len(prefix):]), owners.Delete(index)); err != nil {
				return fmt.Errorf("delete claims: %w", err)
			}
		}
	}
	return nil
}

// Claims returns the claims of a kind, or all with "", by kind and name.
// Damaged records are treated as in Attachments.
func (tx *Tx) Claims(kind string) ([]Claim, error) {
	var prefix []byte
	if kind != "" {
		prefix = encodeKey(kind)
	}
	var all []Claim
	err := scan(tx.b, bucketClaims, prefix, func(_ []byte, c Claim) error {
		all = append(all, c)
		return nil
	})
	return all, err
}

// keysWith are copies of the keys with a prefix: a bucket must not be changed
// under its cursor.
func keysWith(b *bolt.Bucket, prefix []byte) [][]byte {
	if b == nil {
		return nil
	}
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	return keys
}

// KeepTx is one transaction on keep.db.
type KeepTx struct {
	// b is nil when there is no file.
	b *bolt.Tx
}

// mark keeps what is known beside a value, should more become known.
type mark struct {
	Value json.RawMessage `json:"value"`
}

// Mark stores a JSON value under a name, in place of an older one. A value that
// is no JSON is ErrInvalid; none at all is stored as null.
func (tx *KeepTx) Mark(kind, name string, value json.RawMessage) error {
	key, err := storableKey("mark", kind, name)
	if err != nil {
		return err
	}
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	to, err := writable(tx.b, bucketMarks)
	if err != nil {
		return err
	}
	return putRecord(to, key, mark{Value: value})
}

// Marked returns the value stored under a name, and whether there is one.
func (tx *KeepTx) Marked(kind, name string) (json.RawMessage, bool, error) {
	var m mark
	err := get(tx.b, bucketMarks, encodeKey(kind, name), &m)
	if errors.Is(err, ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return m.Value, true, nil
}

// Unmark deletes a mark; none is fine.
func (tx *KeepTx) Unmark(kind, name string) error {
	return remove(tx.b, bucketMarks, encodeKey(kind, name))
}
