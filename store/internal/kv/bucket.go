// Package kv encodes the store's keys and records and reads and writes them
// in bbolt's buckets. A key is a list of texts, a record is JSON.
package kv

import (
	"bytes"
	"errors"
	"fmt"
	"iter"

	bolt "go.etcd.io/bbolt"
)

// Bucket returns a bucket for reading, or nil if it does not exist or tx is nil because there is no
// file.
func Bucket(tx *bolt.Tx, name string) *bolt.Bucket {
	if tx == nil {
		return nil
	}
	return tx.Bucket([]byte(name))
}

// Writable returns a bucket for writing, and creates it if it does not exist.
func Writable(tx *bolt.Tx, name string) (*bolt.Bucket, error) {
	if tx == nil || !tx.Writable() {
		return nil, fmt.Errorf("write to %s: %w", name, ErrReadOnly)
	}
	bucket, err := tx.CreateBucketIfNotExists([]byte(name))
	if err != nil {
		return nil, fmt.Errorf("make bucket %s: %w", name, err)
	}
	return bucket, nil
}

// Raw returns a stored record without decoding it, or nil.
func Raw(tx *bolt.Tx, bucket string, key []byte) []byte {
	from := Bucket(tx, bucket)
	if from == nil {
		return nil
	}
	return from.Get(key)
}

// Get decodes one record, or returns ErrNotFound.
func Get(tx *bolt.Tx, bucket string, key []byte, into any) error {
	raw := Raw(tx, bucket, key)
	if raw == nil {
		return ErrNotFound
	}
	return Decode(bucket, key, raw, into)
}

// Store stores a record under the key that encodes parts, in place of an older one. what is the record's
// name in errors. See StorableKey.
func Store(tx *bolt.Tx, bucket, what string, rec any, parts ...string) error {
	key, err := StorableKey(what, parts...)
	if err != nil {
		return err
	}
	to, err := Writable(tx, bucket)
	if err != nil {
		return err
	}
	return Put(to, key, rec)
}

// Delete deletes one record. A record that does not exist is not an error.
func Delete(tx *bolt.Tx, bucket string, key []byte) error {
	from, err := Writable(tx, bucket)
	if err != nil {
		return err
	}
	if err := from.Delete(key); err != nil {
		return fmt.Errorf("delete from %s: %w", bucket, err)
	}
	return nil
}

// WithPrefix returns the entries whose keys begin with prefix, in the order of
// keys. A nil bucket is empty. The bucket must not be changed meanwhile.
func WithPrefix(b *bolt.Bucket, prefix []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		if b == nil {
			return
		}
		c := b.Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if !yield(k, v) {
				return
			}
		}
	}
}

// KeysWithPrefix returns copies of the keys that begin with prefix. Use it if the bucket is changed
// meanwhile, because a cursor is not valid after a change.
func KeysWithPrefix(b *bolt.Bucket, prefix []byte) [][]byte {
	var keys [][]byte
	for k := range WithPrefix(b, prefix) {
		keys = append(keys, bytes.Clone(k))
	}
	return keys
}

// List returns the records whose keys begin with prefix, in the order of keys.
// Records that cannot be decoded are skipped and named in the error.
func List[T any](tx *bolt.Tx, bucket string, prefix []byte) ([]T, error) {
	return list[T](tx, bucket, prefix, func([]byte, *T) error { return nil })
}

// ListOwned is List for the records of a network's attachments, or of all with "". It sets the Key of
// each record, to which owner returns the pointer.
func ListOwned[T any](tx *bolt.Tx, bucket, network string, owner func(*T) *Key) ([]T, error) {
	return list(tx, bucket, NetworkPrefix(network), func(key []byte, rec *T) (err error) {
		*owner(rec), err = DecodeAttachment(key)
		return err
	})
}

func list[T any](tx *bolt.Tx, bucket string, prefix []byte, complete func(key []byte, rec *T) error) (all []T, err error) {
	err = Each(tx, bucket, prefix, func(k, v []byte) error {
		var rec T
		err := Decode(bucket, k, v, &rec)
		if err == nil {
			err = complete(k, &rec)
		}
		if err == nil {
			all = append(all, rec)
		}
		return err
	})
	return all, err
}

// Each calls fn with the records whose keys begin with prefix, and joins its errors.
func Each(tx *bolt.Tx, bucket string, prefix []byte, fn func(k, v []byte) error) error {
	var faults []error
	for k, v := range WithPrefix(Bucket(tx, bucket), prefix) {
		if v != nil { // nil is a nested bucket
			faults = append(faults, fn(k, v))
		}
	}
	return errors.Join(faults...)
}
