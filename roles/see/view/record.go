package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// Record is the recorded answer to a question, as JSON. Without a value that is the zero value. Is are the errors of known that the error
// wraps, and Refusal is one that errors.As finds.
type Record struct {
	Value   json.RawMessage      `json:"value,omitempty"`
	Error   string               `json:"error,omitempty"`
	Is      []string             `json:"is,omitempty"`
	Refusal *netops.RouteRefusal `json:"refusal,omitempty"`
}

// known are the errors on which the commands decide.
func known() []error {
	return []error{
		netops.ErrNotExist, netops.ErrNoNetns, unix.EHOSTUNREACH,
		store.ErrBusy, store.ErrDamaged, store.ErrSchema, store.ErrNotFound, store.ErrUnwritable,
	}
}

// recordable is an answer that Records can write.
type recordable interface{ record() (Record, error) }

func (a answer[T]) record() (r Record, err error) {
	if !reflect.ValueOf(&a.value).Elem().IsZero() {
		r.Value, err = json.Marshal(a.value)
	}
	if a.err == nil {
		return r, err
	}
	r.Error = a.err.Error()
	errors.As(a.err, &r.Refusal)
	for _, one := range known() {
		if errors.Is(a.err, one) {
			r.Is = append(r.Is, one.Error())
		}
	}
	return r, err
}

func (r *Record) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Refusal != nil:
		return r.Refusal
	}
	isNone := func(one error) bool { return !slices.Contains(r.Is, one.Error()) }
	return &recordedError{r.Error, slices.DeleteFunc(known(), isNone)}
}

// recordedError is an error that was recorded with those that it wraps.
type recordedError struct {
	text string
	is   []error
}

// Error implements error.
func (e *recordedError) Error() string { return e.text }

// Unwrap returns the known errors that it wraps.
func (e *recordedError) Unwrap() []error { return e.is }

// Records returns what the view knows, by question.
func (v *Namespace) Records() (map[string]Record, error) {
	all := map[string]Record{}
	for question, one := range v.facts {
		r, isUnused := one.(Record)
		if isUnused {
			all[question] = r
			continue
		}
		r, err := one.(recordable).record()
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", question, err)
		}
		all[question] = r
	}
	return all, nil
}

// Recorded returns a view that knows records, and nothing else.
func Recorded(records map[string]Record) *Host {
	h := newHost(&source{facts: map[string]any{}})
	for question, r := range records {
		h.facts[question] = r
	}
	return h
}

// Asked returns the questions that were asked, in order of their texts. Of a recorded view these are all of its records if nothing was
// missing, and nothing is superfluous.
func (v *Namespace) Asked() []string {
	all := maps.Clone(v.facts)
	maps.DeleteFunc(all, func(_ string, one any) bool { _, isUnused := one.(Record); return isUnused })
	return slices.Sorted(maps.Keys(all))
}
