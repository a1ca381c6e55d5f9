package lint

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
)

// schema describes the JSON keys that a Go type accepts.
type schema struct {
	// name is the JSON type for people: "string", "list of object".
	name string
	// keys of an object. It is nil if any key or no key is allowed.
	keys map[string]*schema
	// order is the order of declaration.
	order []string
	// elem is the schema of a list's items or a map's values.
	elem *schema
	// open means that other keys are allowed, too.
	open bool
	// owner is the role that reads the keys below, if it is not the plugin's own.
	owner string
	// doc is the name of the key in the table of docs.
	doc string
}

// maxDepth ends the walk of a recursive type.
const maxDepth = 12

// roleSchema returns the schema of a role's configuration, or nil if the role has none.
func roleSchema(r *roles.Role) *schema {
	if r.Conf == nil {
		return nil
	}
	s := schemaOf(reflect.TypeOf(r.Conf()), 0)
	if s.keys == nil {
		return nil
	}
	s.merge(schemaOf(reflect.TypeFor[roles.NetConf](), 0))
	for _, k := range []string{"args", "runtimeConfig"} {
		s.add(k, &schema{name: "object"})
		s.keys[k].opened()
	}
	return s
}

// opened allows other keys at every level, for other plugins.
func (s *schema) opened() {
	s.open = true
	for _, child := range s.keys {
		child.opened()
	}
}

// schemaOf walks a type like encoding/json does.
func schemaOf(t reflect.Type, depth int) *schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if depth > maxDepth {
		return &schema{name: "any"}
	}
	switch {
	case t == reflect.TypeFor[types.Route]():
		return routeSchema()
	case t == reflect.TypeFor[roles.StringList]():
		return &schema{name: roles.StringListType}
	case t == reflect.TypeFor[json.RawMessage]():
		return &schema{name: "any"}
	case implements[encoding.TextUnmarshaler](t) && !implements[json.Unmarshaler](t):
		return &schema{name: "string"}
	case implements[json.Unmarshaler](t) && t.Kind() != reflect.String:
		return &schema{name: "any"}
	}
	switch t.Kind() {
	case reflect.Struct:
		s := &schema{name: "object", keys: map[string]*schema{}}
		s.fields(t, docName(t), depth)
		return s
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &schema{name: "string"}
		}
		e := schemaOf(t.Elem(), depth+1)
		return &schema{name: "list of " + e.name, elem: e}
	case reflect.Map:
		e := schemaOf(t.Elem(), depth+1)
		return &schema{name: "object of " + e.name, elem: e}
	case reflect.String:
		return &schema{name: "string"}
	case reflect.Bool:
		return &schema{name: "bool"}
	case reflect.Interface:
		return &schema{name: "any"}
	default:
		return &schema{name: "number"}
	}
}

// fields adds the fields of a struct, including those of embedded structs.
func (s *schema) fields(t reflect.Type, doc string, depth int) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		ft := f.Type
		for ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if f.Anonymous && name == "" && ft.Kind() == reflect.Struct {
			embedded = append(embedded, ft)
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		child := schemaOf(f.Type, depth+1)
		child.doc = doc + "." + f.Name
		child.setDocs(ft, child.doc)
		s.add(name, child)
	}
	for _, e := range embedded {
		inner := &schema{name: "object", keys: map[string]*schema{}}
		inner.fields(e, docName(e), depth+1)
		s.merge(inner)
	}
}

// setDocs sets the names in the table of docs for the fields of an anonymous struct type.
func (s *schema) setDocs(t reflect.Type, doc string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
		if s.elem != nil {
			s = s.elem
		}
	}
	if t.Kind() != reflect.Struct || t.Name() != "" {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if child := s.keys[name]; child != nil {
			child.doc = doc + "." + f.Name
			child.setDocs(f.Type, child.doc)
		}
	}
}

func (s *schema) add(name string, child *schema) {
	if _, ok := s.keys[name]; ok {
		return
	}
	s.keys[name] = child
	s.order = append(s.order, name)
}

// merge adds the keys of another object. If both have a key, their keys below are merged, too.
func (s *schema) merge(o *schema) {
	for _, k := range o.order {
		mine, theirs := s.keys[k], o.keys[k]
		if mine != nil && mine.keys != nil && theirs.keys != nil {
			mine.merge(theirs)
			continue
		}
		s.add(k, theirs)
	}
}

// names lists the keys, sorted.
func (s *schema) names() []string { return slices.Sorted(maps.Keys(s.keys)) }

// docName is the name of a struct type in the table of docs.
func docName(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

func implements[I any](t reflect.Type) bool {
	i := reflect.TypeFor[I]()
	return t.Implements(i) || reflect.PointerTo(t).Implements(i)
}

// routeSchema returns the schema of the CNI library's Route, which has its own decoder.
func routeSchema() *schema {
	s := &schema{name: "object", keys: map[string]*schema{}}
	for _, k := range []string{"dst", "gw"} {
		s.add(k, &schema{name: "string", doc: "route." + k})
	}
	for _, k := range []string{"mtu", "advmss", "priority", "table", "scope"} {
		s.add(k, &schema{name: "number", doc: "route." + k})
	}
	return s
}
