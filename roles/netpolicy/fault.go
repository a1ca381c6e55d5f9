package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// Fault is why an object is not in force as it is written.
type Fault struct {
	// Object is the path of a file, or the kind and the name of an object of the API.
	Object string `json:"object"`
	// Line is that of the file, or 0. Field is the path of the field, or "".
	Line  int    `json:"line,omitempty"`
	Field string `json:"field,omitempty"`
	// Reason has all faults of the object.
	Reason string `json:"reason"`
	// InForce is what is in force instead.
	InForce string `json:"inForce"`
}

// String returns the fault for people.
func (f *Fault) String() string {
	at := f.Object
	if f.Line > 0 {
		at += fmt.Sprintf(":%d", f.Line)
	}
	reason := f.Reason
	if f.Field != "" && !strings.Contains(reason, f.Field) {
		reason = f.Field + ": " + reason
	}
	return at + ": " + reason + ": " + f.InForce
}

// NewFault returns the fault of an error of Decode or of a Spec. The key is the name of a field below Fault.Field that is not known, or "".
func NewFault(object string, err error, inForce string) (f *Fault, key string) {
	f = &Fault{Object: object, Reason: strings.ReplaceAll(err.Error(), "\n", "; "), InForce: inForce}
	var at *FieldError
	if errors.As(err, &at) {
		f.Field = at.Path
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		f.Field = strings.TrimPrefix(f.Field+"."+wrong.Field, ".")
	}
	if _, rest, is := strings.Cut(f.Reason, `json: unknown field "`); is && f.Field != "" {
		key, _, _ = strings.Cut(rest, `"`)
	}
	return f, key
}

// FieldError is a fault of one field.
type FieldError struct {
	Path string
	Err  error
}

func (e *FieldError) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// SetFault notes why an object is not in force as it is written, or with nil that it is.
func (t *Table) SetFault(object string, f *Fault) {
	if f == nil {
		delete(t.faults, object)
		return
	}
	t.faults[object] = f
}

// Faults returns the faults of all objects by their names.
func (t *Table) Faults() []*Fault {
	return sorting.Sorted(slices.Collect(maps.Values(t.faults)), func(a, b *Fault) int { return strings.Compare(a.Object, b.Object) })
}

// Denial returns what is in force in place of an invalid policy of which no valid state is known: it isolates all pods of the namespace that
// the policy names, in the directions of its policyTypes, or in both. It returns nil if the policy names no namespace, or is none of a namespace.
// The file's name is a part of the name.
func Denial(doc []byte, file string) *Object {
	var head struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Namespace   string            `json:"namespace"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			PolicyTypes []string `json:"policyTypes"`
		} `json:"spec"`
	}
	_ = json.Unmarshal(doc, &head) // what it lacks is not known
	namespace := head.Metadata.Namespace
	isMulti := head.Kind == "MultiNetworkPolicy"
	if head.Kind != "NetworkPolicy" && !isMulti || !label.IsWord(namespace, "-", false, label.MaxName) {
		return nil
	}
	spec := Spec{PolicyTypes: head.Spec.PolicyTypes}
	if len(spec.PolicyTypes) == 0 {
		spec.PolicyTypes = []string{"Ingress", "Egress"}
	}
	name := "invalid-" + strings.Map(func(r rune) rune { // it is in comments of rules
		if r < 0x80 && label.IsWord(string(r), "", true, 1) || strings.ContainsRune("-_.", r) {
			return r
		}
		return '_'
	}, file)
	o := &Object{ID: "invalid " + file}
	if !isMulti {
		p, _ := spec.Policy(namespace, name) // unknown types isolate in both directions
		o.Policy = p
		o.PutInto, o.RemoveFrom = func(t *Table) { t.PutPolicy(p) }, func(t *Table) { t.RemovePolicy(namespace, name) }
		return o
	}
	all, _ := spec.Multi(namespace, name, head.Metadata.Annotations[NetworksKey])
	if len(all) == 0 {
		return nil
	}
	o.PutInto, o.RemoveFrom = func(t *Table) { t.PutMulti(namespace, name, all) }, func(t *Table) { t.PutMulti(namespace, name, nil) }
	return o
}
