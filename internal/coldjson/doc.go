// Package coldjson is encoding/json for a process that meets each type once.
//
// Before encoding/json encodes or decodes the first value of a struct type it
// prepares that type: it sorts the fields, builds maps of their names and an
// encoder for every type below. That pays off from the tenth value on; a CNI
// call has one or two of each type and spends a fifth of its 4 ms on it. Here
// only a struct's own tags are read, and values are walked as they stand: 0.2 ms
// instead of 1.0 in an ADD. Whether a type has a method of its own is asked of
// reflect, which keeps no answer: the runtime's x.(json.Marshaler) makes an entry
// for each type and interface that it meets, and half of all came from here.
//
// The form is encoding/json's, bit for bit, and so are values and errors: what
// is not plain (a fault, an escape, a name given twice, a type that is not
// handled here) is given to encoding/json from its begin. A fuzz target
// compares the two.
package coldjson

import (
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
)

// errNotPlain asks for encoding/json.
var errNotPlain = errors.New("not plain")

// maxDepth bounds nesting; encoding/json's own bound is far above.
const maxDepth = 100

// field is one field of a struct as JSON has it.
type field struct {
	name                string
	path                [2]int // indexes; path[1] is -1 for a field of the struct itself
	omitEmpty, omitZero bool
}

func (f *field) of(v reflect.Value) reflect.Value {
	v = v.Field(f.path[0])
	if f.path[1] >= 0 {
		v = v.Field(f.path[1])
	}
	return v
}

// fieldsOf are the fields of a struct type in order.
func fieldsOf(t reflect.Type) ([]field, error) {
	for k := known.Load(); k != nil; k = k.next {
		if k.of == t {
			return k.fields, nil
		}
	}
	fields, err := readFields(t)
	if err == nil {
		k := &fieldList{of: t, fields: fields}
		for k.next = known.Load(); !known.CompareAndSwap(k.next, k); k.next = known.Load() {
		}
	}
	return fields, err
}

// known are the structs met so far: a list, since they are few and a call meets
// most of them two or three times.
var known atomic.Pointer[fieldList] //nolint:gochecknoglobals // types do not change

type fieldList struct {
	of     reflect.Type
	fields []field
	next   *fieldList
}

// readFields reads the fields of a struct type. A field of an embedded
// struct gives way to one of the same name outside; embedding goes one deep.
func readFields(t reflect.Type) ([]field, error) {
	fields := make([]field, 0, t.NumField()+8)
	embeds := false
	for i := range t.NumField() {
		sf := t.Field(i)
		f, ok, err := newField(&sf)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			continue
		case !sf.Anonymous || f.name != "":
			f.path = [2]int{i, -1}
			if f.name == "" {
				f.name = sf.Name
			}
			fields = append(fields, f)
			continue
		}
		if sf.Type.Kind() != reflect.Struct || t.PkgPath() == "" {
			return nil, errNotPlain // the methods of what is embedded are the struct's
		}
		embeds = true
		if fields, err = appendEmbedded(fields, sf.Type, i); err != nil {
			return nil, err
		}
	}
	if !embeds {
		return fields, nil
	}
	return dominant(fields)
}

// appendEmbedded appends the fields of the struct embedded as field i.
func appendEmbedded(fields []field, t reflect.Type, i int) ([]field, error) {
	for j := range t.NumField() {
		sf := t.Field(j)
		f, ok, err := newField(&sf)
		if err != nil || sf.Anonymous {
			return nil, errNotPlain
		}
		if !ok {
			continue
		}
		if f.name == "" {
			f.name = sf.Name
		}
		f.path = [2]int{i, j}
		fields = append(fields, f)
	}
	return fields, nil
}

// newField reads a field's tag; ok is false for one that JSON has not. The
// name is empty when the tag gives none.
func newField(sf *reflect.StructField) (f field, ok bool, err error) {
	if !sf.IsExported() && (!sf.Anonymous || sf.Type.Kind() != reflect.Struct) {
		return f, false, nil
	}
	tag, plain := strings.CutPrefix(string(sf.Tag), `json:"`)
	if end := strings.IndexByte(tag, '"'); plain && end >= 0 {
		tag = tag[:end]
	} else {
		tag = sf.Tag.Get("json")
	}
	if tag == "-" {
		return f, false, nil
	}
	name, options, _ := strings.Cut(tag, ",")
	if !isPlainName(name) {
		return f, false, errNotPlain
	}
	f.name = name
	for options != "" {
		var o string
		o, options, _ = strings.Cut(options, ",")
		switch o {
		case "omitempty":
			f.omitEmpty = true
		case "omitzero":
			f.omitZero = true
		default:
			return f, false, errNotPlain
		}
	}
	return f, true, nil
}

// isPlainName tells whether a name of a tag is written as it is and taken as
// it is.
func isPlainName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"\<>&',`, c) >= 0 {
			return false
		}
	}
	return true
}

// dominant drops fields of embedded structs whose name is given outside. Two
// of one name at the same depth are encoding/json's to judge.
func dominant(all []field) ([]field, error) {
	out := make([]field, 0, len(all))
	for i := range all {
		hidden := false
		for j := range all {
			if i == j || all[i].name != all[j].name {
				continue
			}
			inner, otherInner := all[i].path[1] >= 0, all[j].path[1] >= 0
			if inner == otherInner {
				return nil, errNotPlain
			}
			hidden = hidden || inner
		}
		if !hidden {
			out = append(out, all[i])
		}
	}
	return out, nil
}

// hasMethods tells whether a value of the type may encode or decode itself:
// unnamed types without embedding have no methods.
func hasMethods(t reflect.Type) bool { return t.PkgPath() != "" }
