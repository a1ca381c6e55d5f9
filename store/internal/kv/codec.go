package kv

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// Decode decodes a stored record. Its error is ErrDamaged and names the bucket and the key.
func Decode(bucket string, key, raw []byte, into any) error {
	if err := coldjson.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode record %.200q of %s: %w: %w", key, bucket, ErrDamaged, err)
	}
	return nil
}

// Put stores a record as JSON. It keeps unknown fields of the stored record, because a newer program
// wrote them.
func Put(b *bolt.Bucket, key []byte, rec any) error { return (*Last)(nil).Put(b, key, rec) }

// Last has the record that was stored or read last. If that record is replaced, as ADD does at its end,
// Put does not decode it to find unknown fields. A nil Last has no record.
type Last struct {
	raw []byte
	typ reflect.Type
}

// Decode is like the package's Decode, for a pointer to the type that Put stores.
func (l *Last) Decode(bucket string, key, raw []byte, into any) error {
	if !coldjson.UnmarshalKnown(raw, into) {
		return Decode(bucket, key, raw, into)
	}
	if l != nil {
		l.raw, l.typ = bytes.Clone(raw), reflect.TypeOf(into)
	}
	return nil
}

// Put is like the package's Put.
func (l *Last) Put(b *bolt.Bucket, key []byte, rec any) error {
	raw, err := coldjson.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode record %.200q: %w: %w", key, ErrInvalid, err)
	}
	t := reflect.TypeOf(rec)
	old := b.Get(key)
	known := old == nil || l != nil && l.typ == t && bytes.Equal(l.raw, old)
	if !known {
		raw = keepUnknown(old, raw, t)
	}
	if err := b.Put(key, raw); err != nil {
		return fmt.Errorf("store record %.200q: %w", key, err)
	}
	if l != nil && known {
		l.raw, l.typ = raw, t
	}
	return nil
}

// keepUnknown returns the new record with the fields of the old one that type t does not have. If the
// old record is not JSON, it returns the new one.
func keepUnknown(old, raw []byte, t reflect.Type) []byte {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if coldjson.UnmarshalKnown(old, reflect.New(t).Interface()) {
		return raw
	}
	merged, err := json.Marshal(mergeUnknown(old, raw, t))
	if err != nil {
		return raw
	}
	return merged
}

// mergeUnknown merges one JSON value. Objects are merged field by field. Elements
// of two lists of objects are merged when their first fields are equal, for
// example the role of a Part.
func mergeUnknown(old, raw json.RawMessage, t reflect.Type) json.RawMessage {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Struct && hasFields(t):
		return mergeObject(old, raw, t)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && hasFields(t.Elem()):
		return mergeList(old, raw, t.Elem())
	}
	return raw
}

func mergeObject(old, raw json.RawMessage, t reflect.Type) json.RawMessage {
	var before, after map[string]json.RawMessage
	if json.Unmarshal(old, &before) != nil || json.Unmarshal(raw, &after) != nil || after == nil {
		return raw
	}
	known := fieldTypes(t)
	for name, value := range before {
		ft, ok := known[name]
		if !ok {
			after[name] = value
			continue
		}
		if now, ok := after[name]; ok {
			after[name] = mergeUnknown(value, now, ft)
		}
	}
	merged, err := json.Marshal(after)
	if err != nil {
		return raw
	}
	return merged
}

func mergeList(old, raw json.RawMessage, elem reflect.Type) json.RawMessage {
	var before, after []json.RawMessage
	if json.Unmarshal(old, &before) != nil || json.Unmarshal(raw, &after) != nil {
		return raw
	}
	id, _ := jsonName(elem.Field(0))
	byID := map[string]json.RawMessage{}
	for _, e := range before {
		byID[fieldOf(e, id)] = e
	}
	for i, e := range after {
		if was, ok := byID[fieldOf(e, id)]; ok {
			after[i] = mergeUnknown(was, e, elem)
		}
	}
	merged, err := json.Marshal(after)
	if err != nil {
		return raw
	}
	return merged
}

// fieldOf returns the JSON text of an object's field, or "".
func fieldOf(object json.RawMessage, name string) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(object, &m) != nil {
		return ""
	}
	return string(m[name])
}

// hasFields reports whether a struct is encoded as a JSON object. A type that
// encodes itself, as time.Time and netip.Addr do, is not.
func hasFields(t reflect.Type) bool {
	return t.NumField() > 0 && !t.Implements(reflect.TypeFor[json.Marshaler]()) &&
		!t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// fieldTypes returns the types of a struct's JSON fields by name, including those of embedded structs.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, ok := jsonName(f)
		switch {
		case f.Anonymous && !ok:
			for n, ft := range fieldTypes(f.Type) {
				known[n] = ft
			}
		case f.IsExported():
			known[name] = f.Type
		}
	}
	return known
}

// jsonName returns a field's name in JSON, or false if its tag has none.
func jsonName(f reflect.StructField) (string, bool) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		return f.Name, false
	}
	return name, true
}
