package netops

import (
	"encoding/json"
	"fmt"
)

// jsonObject is an object under its kind, and in a Step the verb beside it.
type jsonObject struct {
	Verb      Verb       `json:"verb,omitempty"`
	Link      *Link      `json:"link,omitempty"`
	Addr      *Addr      `json:"addr,omitempty"`
	Route     *Route     `json:"route,omitempty"`
	Neigh     *Neigh     `json:"neigh,omitempty"`
	Rule      *Rule      `json:"rule,omitempty"`
	Sysctl    *Sysctl    `json:"sysctl,omitempty"`
	PortVLANs *PortVLANs `json:"portVLANs,omitempty"`
	Element   *Element   `json:"element,omitempty"`
}

func toJSON(v Verb, o Object) (*jsonObject, error) {
	j := &jsonObject{Verb: v}
	switch o := o.(type) {
	case *Link:
		j.Link = o
	case *Addr:
		j.Addr = o
	case *Route:
		j.Route = o
	case *Neigh:
		j.Neigh = o
	case *Rule:
		j.Rule = o
	case *Sysctl:
		j.Sysctl = o
	case *PortVLANs:
		j.PortVLANs = o
	case *Element:
		j.Element = o
	default:
		return nil, fmt.Errorf("encode step: %w: no object", ErrInvalid)
	}
	return j, nil
}

// object is the one object, validated.
func (j *jsonObject) object() (Object, error) {
	var found []object
	// A nil pointer in an interface is not nil: each has to be asked for itself.
	if j.Link != nil {
		found = append(found, j.Link)
	}
	if j.Addr != nil {
		found = append(found, j.Addr)
	}
	if j.Route != nil {
		found = append(found, j.Route)
	}
	if j.Neigh != nil {
		found = append(found, j.Neigh)
	}
	if j.Rule != nil {
		found = append(found, j.Rule)
	}
	if j.Sysctl != nil {
		found = append(found, j.Sysctl)
	}
	if j.PortVLANs != nil {
		found = append(found, j.PortVLANs)
	}
	if j.Element != nil {
		found = append(found, j.Element)
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%w: %d objects of known kinds where there must be one", ErrInvalid, len(found))
	}
	if err := found[0].validate(); err != nil {
		return nil, err
	}
	return found[0], nil
}

// MarshalJSON gives {"verb":"del","link":{…}}.
func (st Step) MarshalJSON() ([]byte, error) {
	j, err := toJSON(st.Verb, st.Object)
	if err != nil {
		return nil, err
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON gives. An unknown verb or kind, more or
// less than one object, and values that no kernel would take are errors
// wrapping ErrInvalid; unknown fields of an object are not.
func (st *Step) UnmarshalJSON(b []byte) error {
	var j jsonObject
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode step: %w", err)
	}
	o, err := j.object()
	if err != nil {
		return fmt.Errorf("decode step: %w", err)
	}
	read := Step{j.Verb, o}
	if _, err := read.check(); err != nil {
		return fmt.Errorf("decode step: %w", err)
	}
	*st = read
	return nil
}

// MarshalJSON gives {"objects":[{"link":{…}},…]}.
func (spec Spec) MarshalJSON() ([]byte, error) {
	list := make([]*jsonObject, len(spec.Objects))
	for i, o := range spec.Objects {
		j, err := toJSON("", o)
		if err != nil {
			return nil, err
		}
		list[i] = j
	}
	return json.Marshal(struct {
		Objects []*jsonObject `json:"objects"`
	}{list})
}

// UnmarshalJSON reads what MarshalJSON gives, with errors as Step has.
func (spec *Spec) UnmarshalJSON(b []byte) error {
	var j struct {
		Objects []*jsonObject `json:"objects"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode spec: %w", err)
	}
	var objects []Object
	for i, jo := range j.Objects {
		if jo == nil || jo.Verb != "" {
			return fmt.Errorf("decode spec: object %d: %w", i, ErrInvalid)
		}
		o, err := jo.object()
		if err != nil {
			return fmt.Errorf("decode spec: object %d: %w", i, err)
		}
		objects = append(objects, o)
	}
	spec.Objects = objects
	return nil
}

// UnmarshalJSON reads a Change; one without a step to do is an error.
func (c *Change) UnmarshalJSON(b []byte) error {
	var j struct {
		Do   *Step `json:"do"`
		Undo *Step `json:"undo"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode change: %w", err)
	}
	if j.Do == nil {
		return fmt.Errorf("decode change: %w: no step", ErrInvalid)
	}
	c.Do, c.Undo = *j.Do, j.Undo
	return nil
}
