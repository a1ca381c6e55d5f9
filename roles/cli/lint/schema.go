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

// schema is what a Go type accepts as JSON, as far as keys go.
type schema struct {
	// name is the JSON type for people: "string", "list of object".
	name string
	// keys of an object; nil where any key, or no key at all, may stand.
	keys map[string]*schema
	// order is the order of declaration.
	order []string
	// elem is the schema of a list's items or a map's values.
	elem *schema
	// open tells that other keys than these may stand there too.
	open bool
	// owner is the role that reads what is below, when it is not the plugin's own.
	owner string
	// doc is where the key's documentation is found in the table of docs.
	doc string
}

// maxDepth ends the walk of a type that contains itself.
const maxDepth = 12

// roleSchema is what may stand in the configuration of a role; nil when the
// role does not tell.
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

// opened lets other keys stand at every level: those of other plugins.
func (s *schema) opened() {
	s.open = true
	for _, child := range s.keys {
		child.opened()
	}
}

// schemaOf walks a type the way encoding/json does.
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
	case t == reflect.TypeFor[json.RawMessage]():
		return &schema{name: "any"}
	case implements[encoding.TextUnmarshaler](t) && !implements[json.Unmarshaler](t):
		return &schema{name: "string"}
	case implements[json.Unmarshaler](t):
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

// fields adds the fields of a struct; those of an embedded struct stand beside them.
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
		child.redoc(ft, child.doc)
		s.add(name, child)
	}
	for _, e := range embedded {
		inner := &schema{name: "object", keys: map[string]*schema{}}
		inner.fields(e, docName(e), depth+1)
		s.merge(inner)
	}
}

// redoc gives the fields of a struct type without a name, used by one field
// only, the names that the table of docs has them under.
func (s *schema) redoc(t reflect.Type, doc string) {
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
			child.redoc(f.Type, child.doc)
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

// merge adds the keys of another object; where both have a key, what both know
// below it is known.
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

// routeSchema is that of the CNI library's Route, which has a decoder of its own.
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
