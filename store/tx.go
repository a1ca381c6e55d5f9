package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// Tx is one transaction on node.db. It and the iterators and pools that it returns
// are valid only within the function that received it.
type Tx struct {
	// b is nil when there is no file.
	b *bolt.Tx
	// cache and memo are nil for a file that is being made.
	cache *boltfile.Cache
	memo  *memo
	// now is Options.Now.
	now func() time.Time
	// released are the leases that pools released.
	released []Released
	// ended are the attachments that were deleted.
	ended []*Holding
}

// clock returns the time to record.
func (tx *Tx) clock() time.Time {
	if tx.now == nil {
		return time.Now()
	}
	return tx.now()
}

// FileID returns an identifier of the file. A new file at the same path has another one. It is the
// file's stored Info, not decoded, and empty without a file.
func (tx *Tx) FileID() (string, error) {
	if tx.b == nil {
		return "", nil
	}
	raw, err := tx.cache.RawInfo(tx.b)
	return string(raw), err
}

// Info returns the file's Info, or zero without a file.
func (tx *Tx) Info() (Info, error) {
	if tx.b == nil {
		return Info{}, nil
	}
	return tx.cache.Info(tx.b)
}

// Attachment returns an attachment's record, or an error that is ErrNotFound.
func (tx *Tx) Attachment(k Key) (*Attachment, error) {
	key := k.Encode()
	raw := kv.Raw(tx.b, bucketAttachments, key)
	if raw == nil {
		return nil, &absentError{k}
	}
	var a Attachment
	if err := tx.memo.lastAttachment().Decode(bucketAttachments, key, raw, &a); err != nil {
		return nil, fmt.Errorf("attachment %s: %w", k.Describe(), err)
	}
	a.Key = k
	return &a, nil
}

// PutAttachment stores an attachment's record, in place of an older one. Names that
// are not UTF-8, or too long for a key (about 32 kB together), are ErrInvalid.
func (tx *Tx) PutAttachment(a *Attachment) error {
	key, err := a.Storable("attachment")
	if err != nil {
		return err
	}
	to, err := kv.Writable(tx.b, bucketAttachments)
	if err != nil {
		return err
	}
	return tx.memo.lastAttachment().Put(to, key, a)
}

// DeleteAttachment deletes an attachment's record. A missing one is not an error.
func (tx *Tx) DeleteAttachment(k Key) error {
	if a, err := tx.Attachment(k); err == nil && len(a.Addresses) > 0 && a.WasAttached() {
		h := a.Holding()
		h.Until = tx.clock().UTC()
		tx.ended = append(tx.ended, h)
	}
	return kv.Delete(tx.b, bucketAttachments, k.Encode())
}

// WasAttached reports whether an ADD of a role has succeeded.
func (a *Attachment) WasAttached() bool {
	return slices.ContainsFunc(a.Parts, func(p Part) bool { return p.State != Pending })
}

// Attachments returns the attachments of a network, or of all with "", ordered by
// network, container ID and interface name. Records that cannot be decoded are
// skipped and named in the error, which is ErrDamaged then.
func (tx *Tx) Attachments(network string) ([]Attachment, error) {
	return kv.ListOwned(tx.b, bucketAttachments, network, func(a *Attachment) *Key { return &a.Key })
}

// Attached reports whether a network has an attachment. It decodes none.
func (tx *Tx) Attached(network string) bool {
	for range kv.WithPrefix(kv.Bucket(tx.b, bucketAttachments), kv.EncodeKey(network)) {
		return true
	}
	return false
}

// Network returns a network's record, or an error that is ErrNotFound.
func (tx *Tx) Network(name string) (*Network, error) {
	var n Network
	if err := kv.Get(tx.b, bucketNetworks, kv.EncodeKey(name), &n); err != nil {
		return nil, fmt.Errorf("network %.80q: %w", name, err)
	}
	n.Name = name
	return &n, nil
}

// PutNetwork stores a network's record, in place of an older one.
func (tx *Tx) PutNetwork(n *Network) error {
	return kv.Store(tx.b, bucketNetworks, "network", n, n.Name)
}

// DeleteNetwork deletes a network's record. A missing one is not an error.
func (tx *Tx) DeleteNetwork(name string) error {
	if err := kv.Delete(tx.b, bucketNetworks, kv.EncodeKey(name)); err != nil {
		return err
	}
	return unconfirmShared(tx.b, name)
}

// Networks returns all networks by name. Damaged records are handled as in
// Attachments.
func (tx *Tx) Networks() ([]Network, error) {
	return kv.List[Network](tx.b, bucketNetworks, nil)
}

// MentionsSet reports whether an attachment, or a network that has one, has recorded an element
// of one of the nftables sets. Those of an ADD that has not succeeded do not count: they may never
// have been made. It decodes no record without such an element, so it is fast for many attachments,
// and may report true for another text that looks like an element.
func (tx *Tx) MentionsSet(names []string) bool {
	for _, bucket := range []string{bucketAttachments, bucketNetworks} {
		for key, raw := range kv.WithPrefix(kv.Bucket(tx.b, bucket), nil) {
			if mentionsSet(raw, names) && tx.wasAttached(key) {
				return true
			}
		}
	}
	return false
}

// mentionsSet reports whether a record has an element of one of the sets.
func mentionsSet(raw []byte, names []string) bool {
	for {
		_, rest, found := bytes.Cut(raw, []byte(`"set":"`))
		if !found {
			return false
		}
		name, rest, _ := bytes.Cut(rest, []byte(`"`))
		if slices.Contains(names, string(name)) {
			return true
		}
		raw = rest
	}
}

// wasAttached reports whether an ADD has succeeded for an attachment whose key begins with
// prefix, or whether the record of one cannot be decoded.
func (tx *Tx) wasAttached(prefix []byte) bool {
	for key, raw := range kv.WithPrefix(kv.Bucket(tx.b, bucketAttachments), prefix) {
		var a Attachment
		if kv.Decode(bucketAttachments, key, raw, &a) != nil || a.WasAttached() {
			return true
		}
	}
	return false
}

// KeepTx is one transaction on keep.db.
type KeepTx struct {
	// b is nil when there is no file.
	b *bolt.Tx
}

// mark is a record, not the bare value, so that fields can be added.
type mark struct {
	Value json.RawMessage `json:"value"`
}

// Mark stores a JSON value under a name, in place of an older one. For a value that is not JSON it
// returns ErrInvalid. An empty value is stored as null.
func (tx *KeepTx) Mark(kind, name string, value json.RawMessage) error {
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	return kv.Store(tx.b, bucketMarks, "mark", mark{Value: value}, kind, name)
}

// Marked returns the value stored under a name, and whether there is one.
func (tx *KeepTx) Marked(kind, name string) (json.RawMessage, bool, error) {
	var m mark
	err := kv.Get(tx.b, bucketMarks, kv.EncodeKey(kind, name), &m)
	if errors.Is(err, ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return m.Value, true, nil
}

// Unmark deletes a mark. A missing one is not an error.
func (tx *KeepTx) Unmark(kind, name string) error {
	return kv.Delete(tx.b, bucketMarks, kv.EncodeKey(kind, name))
}
