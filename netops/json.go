package netops

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// The JSON form of an object has the name of its kind as the key. Only the type of that
// kind is encoded or decoded. With a struct that has a field for each kind, a process
// that handles one step would have to prepare the encoders of all kinds.

// kinds returns an object of each kind.
func kinds() []kernelObject {
	return []kernelObject{
		(*Link)(nil),
		(*Move)(nil),
		(*Addr)(nil),
		(*Route)(nil),
		(*Neigh)(nil),
		(*Rule)(nil),
		(*Sysctl)(nil),
		(*PortVLANs)(nil),
		(*Qdisc)(nil),
		(*Redirect)(nil),
		(*Element)(nil),
		(*Forward)(nil),
		(*ZoneSource)(nil),
		(*VRF)(nil),
		(*Flows)(nil),
		(*Takeover)(nil),
		(*LinkDNS)(nil),
		(*Netns)(nil),
		(*PodPolicy)(nil),
	}
}

// newObject returns a new object for a JSON key, or nil if the key is not a kind.
func newObject(key string) kernelObject {
	for _, kind := range kinds() {
		if kind.jsonKey() == key {
			return reflect.New(reflect.TypeOf(kind).Elem()).Interface().(kernelObject)
		}
	}
	return nil
}

// toJSON returns {"verb":"del","link":{…}}. An empty verb is left out.
func toJSON(v Verb, o Object) (json.RawMessage, error) {
	if _, ok := o.(kernelObject); !ok {
		return nil, fmt.Errorf("encode step: %w: no object", ErrInvalid)
	}
	body, err := coldjson.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o.jsonKey(), err)
	}
	out := []byte{'{'}
	if v != "" {
		out = append(strconv.AppendQuote(append(out, `"verb":`...), string(v)), ',')
	}
	out = append(strconv.AppendQuote(out, o.jsonKey()), ':')
	return append(append(out, body...), '}'), nil
}

// fromJSON decodes the output of toJSON. There must be exactly one object of a known
// kind, and it must be valid.
func fromJSON(b []byte) (v Verb, o Object, err error) {
	var fields map[string]json.RawMessage
	if err := coldjson.Unmarshal(b, &fields); err != nil {
		return "", nil, err
	}
	found := 0
	for key, raw := range fields {
		if key == "verb" {
			if err := coldjson.Unmarshal(raw, &v); err != nil {
				return "", nil, err
			}
			continue
		}
		one := newObject(key)
		if one == nil || string(raw) == "null" {
			continue
		}
		if err := coldjson.Unmarshal(raw, one); err != nil {
			return "", nil, fmt.Errorf("%s: %w", key, err)
		}
		if err := one.validate(); err != nil {
			return "", nil, err
		}
		found++
		o = one
	}
	if found != 1 {
		return "", nil, fmt.Errorf("%w: %d objects of known kinds where there must be one", ErrInvalid, found)
	}
	return v, o, nil
}

// MarshalJSON returns {"verb":"del","link":{…}}.
func (st Step) MarshalJSON() ([]byte, error) { return toJSON(st.Verb, st.Object) }

// UnmarshalJSON decodes the output of MarshalJSON. The error wraps ErrInvalid for an
// unknown verb or kind, for more or less than one object, and for values that every
// kernel refuses. Unknown fields of an object are ignored.
func (st *Step) UnmarshalJSON(b []byte) error {
	v, o, err := fromJSON(b)
	if err != nil {
		return fmt.Errorf("decode step: %w", err)
	}
	read := Step{v, o}
	if _, err := read.check(); err != nil {
		return fmt.Errorf("decode step: %w", err)
	}
	*st = read
	return nil
}

// MarshalJSON returns {"objects":[{"link":{…}},…]}.
func (spec Spec) MarshalJSON() ([]byte, error) {
	list := make([]json.RawMessage, len(spec.Objects))
	for i, o := range spec.Objects {
		var err error
		list[i], err = toJSON("", o)
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(struct {
		Objects []json.RawMessage `json:"objects"`
	}{list})
}

// UnmarshalJSON decodes the output of MarshalJSON. Its errors are those of
// Step.UnmarshalJSON.
func (spec *Spec) UnmarshalJSON(b []byte) error {
	var j struct {
		Objects []json.RawMessage `json:"objects"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode spec: %w", err)
	}
	var objects []Object
	for i, raw := range j.Objects {
		v, o, err := fromJSON(raw)
		if err == nil && v != "" {
			err = fmt.Errorf("a verb: %w", ErrInvalid)
		}
		if err != nil {
			return fmt.Errorf("decode spec: object %d: %w", i, err)
		}
		objects = append(objects, o)
	}
	spec.Objects = objects
	return nil
}

// UnmarshalJSON decodes a Change. A missing "do" is an error.
func (c *Change) UnmarshalJSON(b []byte) error {
	var j struct {
		Do   *Step `json:"do"`
		Undo *Step `json:"undo"`
	}
	if err := coldjson.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode change: %w", err)
	}
	if j.Do == nil {
		return fmt.Errorf("decode change: %w: no step", ErrInvalid)
	}
	c.Do, c.Undo = *j.Do, j.Undo
	return nil
}
