package netops

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// stepJSON is the JSON form of a step: the verb, and the object under the name of its kind. All
// other fields are nil. A process that handles one step needs coldjson here: encoding/json would
// prepare the encoders of all kinds.
type stepJSON struct {
	Verb       Verb        `json:"verb,omitempty"`
	Link       *Link       `json:"link,omitempty"`
	Move       *Move       `json:"move,omitempty"`
	VF         *VF         `json:"vf,omitempty"`
	Addr       *Addr       `json:"addr,omitempty"`
	Route      *Route      `json:"route,omitempty"`
	Neigh      *Neigh      `json:"neigh,omitempty"`
	Rule       *Rule       `json:"rule,omitempty"`
	Sysctl     *Sysctl     `json:"sysctl,omitempty"`
	PortVLANs  *PortVLANs  `json:"portVLANs,omitempty"`
	Qdisc      *Qdisc      `json:"qdisc,omitempty"`
	Redirect   *Redirect   `json:"redirect,omitempty"`
	Element    *Element    `json:"element,omitempty"`
	Forward    *Forward    `json:"forward,omitempty"`
	ZoneSource *ZoneSource `json:"zoneSource,omitempty"`
	VRF        *VRF        `json:"vrf,omitempty"`
	Flows      *Flows      `json:"flows,omitempty"`
	Takeover   *Takeover   `json:"takeover,omitempty"`
	LinkDNS    *LinkDNS    `json:"linkDNS,omitempty"`
	Netns      *Netns      `json:"netns,omitempty"`
	PodPolicy  *PodPolicy  `json:"podPolicy,omitempty"`
	OVSPort    *OVSPort    `json:"ovsPort,omitempty"`
}

// toJSON returns {"verb":"del","link":{…}}. An empty verb is left out.
func toJSON(v Verb, o Object) ([]byte, error) {
	j := stepJSON{Verb: v}
	fields := reflect.ValueOf(&j).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); o != nil && f.Type() == reflect.TypeOf(o) {
			f.Set(reflect.ValueOf(o))
			return coldjson.Marshal(&j)
		}
	}
	return nil, fmt.Errorf("encode step: %w: no object", ErrInvalid)
}

// fromJSON decodes the output of toJSON. There must be exactly one object of a known
// kind, and it must be valid.
func fromJSON(b []byte) (Verb, Object, error) {
	var j stepJSON
	if err := coldjson.Unmarshal(b, &j); err != nil {
		return "", nil, err
	}
	var found []Object
	fields := reflect.ValueOf(&j).Elem()
	for i := range fields.NumField() {
		if o, ok := fields.Field(i).Interface().(Object); ok && !fields.Field(i).IsNil() {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		return "", nil, fmt.Errorf("%w: %d objects of known kinds where there must be one", ErrInvalid, len(found))
	}
	return j.Verb, found[0], found[0].validate()
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
	list := make([]Step, len(spec.Objects))
	for i, o := range spec.Objects {
		list[i].Object = o
	}
	return json.Marshal(struct {
		Objects []Step `json:"objects"`
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
