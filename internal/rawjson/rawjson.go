// Package rawjson changes members of a JSON object and leaves every other byte
// unchanged. Unknown keys, the order of keys, numbers beyond 64 bits and white
// space are kept.
package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
)

// ErrObject means that the text is not a JSON object.
var ErrObject = errors.New("not a JSON object")

// Member is one member of an object.
type Member struct {
	Name  string
	Value json.RawMessage
	// from and to are the byte offsets of Value in the object's text.
	from, to int
}

// Members returns an object's members in their order, including duplicates. The values are parts of
// the text, not copies.
func Members(object []byte) ([]Member, error) {
	if !json.Valid(object) {
		return nil, ErrObject
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, ErrObject
	}
	var out []Member
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		m := Member{Name: name.(string), to: int(dec.InputOffset())}
		m.from = m.to - len(value)
		m.Value = slices.Clip(json.RawMessage(object[m.from:m.to]))
		out = append(out, m)
	}
	return out, nil
}

// Get returns the value of a member, or nil if it is missing. Of duplicates it returns the last value,
// as encoding/json does.
func Get(object []byte, name string) (json.RawMessage, error) {
	members, err := Members(object)
	var value json.RawMessage
	for _, m := range members {
		if m.Name == name {
			value = m.Value
		}
	}
	return value, err
}

// Set returns a copy of the object in which a member has the given value, which
// must be valid JSON. It replaces the member's value, or inserts a new member
// at the beginning.
func Set(object []byte, name string, value json.RawMessage) ([]byte, error) {
	if !json.Valid(value) {
		return nil, errors.New("the value is not JSON")
	}
	members, err := Members(object)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(object)+len(name)+len(value)+len(`"":,`))
	done := 0
	for _, m := range members {
		if m.Name == name {
			out = append(append(out, object[done:m.from]...), value...)
			done = m.to
		}
	}
	if done > 0 {
		return append(out, object[done:]...), nil
	}
	key, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	begin := slices.Index(object, '{') + 1
	out = append(append(append(append(out, object[:begin]...), key...), ':'), value...)
	if len(members) > 0 {
		out = append(out, ',')
	}
	return append(out, object[begin:]...), nil
}

// Remove returns the object without a member.
func Remove(object []byte, name string) ([]byte, error) {
	members, err := Members(object)
	if err != nil || !slices.ContainsFunc(members, func(m Member) bool { return m.Name == name }) {
		return object, err
	}
	out := []byte{'{'}
	for _, m := range members {
		if m.Name == name {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		key, err := json.Marshal(m.Name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, key...), ':'), m.Value...)
	}
	return append(out, '}'), nil
}
