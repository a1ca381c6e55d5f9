package store

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// decodeRecord decodes a stored record. A failure names bucket and key and is
// an ErrDamaged.
func decodeRecord(bucket string, key, raw []byte, into any) error {
	if err := coldjson.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode record %.200q of %s: %w: %w", key, bucket, ErrDamaged, err)
	}
	return nil
}

// putRecord stores a record as JSON. Fields of the stored record that this
// program does not know stay: a newer one wrote them.
func putRecord(b *bolt.Bucket, key []byte, rec any) error {
	return (*memo)(nil).putRecord(b, key, rec)
}

// keepUnknown returns the new record with the old one's fields that type t has
// not. An old record that is no JSON has nothing to keep.
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

// mergeUnknown merges one JSON value. Objects are merged field by field; the
// elements of a list of objects belong together when their first fields are
// equal, as a Part's role is.
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

// fieldOf is the JSON text of an object's field, or "".
func fieldOf(object json.RawMessage, name string) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(object, &m) != nil {
		return ""
	}
	return string(m[name])
}

// hasFields tells structs that are JSON objects from those that encode
// themselves, as time.Time and netip.Addr do.
func hasFields(t reflect.Type) bool {
	return t.NumField() > 0 && !t.Implements(reflect.TypeFor[json.Marshaler]()) &&
		!t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// fieldTypes are the types of a struct's JSON fields by name, those of embedded
// structs included.
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

// jsonName is a field's name in JSON; false when no tag gives it.
func jsonName(f reflect.StructField) (string, bool) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		return f.Name, false
	}
	return name, true
}
