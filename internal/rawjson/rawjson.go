// Package rawjson changes members of a JSON object and leaves every other byte
// unchanged. Unknown keys, the order of keys, numbers beyond 64 bits and white
// space are kept.
package rawjson

import (
	"encoding/json"
	"errors"
	"slices"
)

// ErrObject means that the text is not a JSON object.
var ErrObject = errors.New("no JSON object")

// Member is one member of an object.
type Member struct {
	Name  string
	Value json.RawMessage
	// from and to are the byte offsets of Value in the object's text.
	from, to int
}

// Members returns an object's members in their order. A name that occurs twice
// is returned twice. The values are parts of the text, not copies.
func Members(object []byte) ([]Member, error) {
	if !json.Valid(object) {
		return nil, ErrObject
	}
	s := scanner{text: object}
	if s.space(); s.text[s.at] != '{' {
		return nil, ErrObject
	}
	s.at++
	var out []Member
	for {
		if s.space(); s.text[s.at] == ',' {
			s.at++
			s.space()
		}
		if s.text[s.at] == '}' {
			return out, nil
		}
		var m Member
		begin := s.at
		s.value()
		if err := json.Unmarshal(s.text[begin:s.at], &m.Name); err != nil {
			return nil, err
		}
		s.space()
		s.at++ // the colon
		s.space()
		m.from = s.at
		s.value()
		m.to = s.at
		m.Value = slices.Clip(json.RawMessage(s.text[m.from:m.to]))
		out = append(out, m)
	}
}

// Get returns the value of a member, or nil if it is missing. If a name occurs
// twice the last value is returned, as in encoding/json.
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
		return nil, errors.New("the value is no JSON")
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

// scanner reads valid JSON.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\t' || s.text[s.at] == '\n' || s.text[s.at] == '\r') {
		s.at++
	}
}

// value skips one value.
func (s *scanner) value() {
	for depth := 0; ; {
		switch s.text[s.at] {
		case '"':
			s.quoted()
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case ',', ':', ' ', '\t', '\n', '\r':
			s.at++
		default:
			s.word()
		}
		if depth == 0 {
			return
		}
	}
}

// quoted skips a string.
func (s *scanner) quoted() {
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

// word skips a number, true, false or null.
func (s *scanner) word() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ',', ':', '}', ']', ' ', '\t', '\n', '\r':
			return
		}
		s.at++
	}
}
