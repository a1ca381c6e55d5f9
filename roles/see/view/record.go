package view

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
)

// Record is the recorded answer to a question, as JSON. The error of a missing object, or of a packet that a rule refuses, is one that
// errors.Is and errors.As know.
type Record struct {
	Value    json.RawMessage      `json:"value"`
	Error    string               `json:"error,omitempty"`
	IsAbsent bool                 `json:"isAbsent,omitempty"`
	Refusal  *netops.RouteRefusal `json:"refusal,omitempty"`
}

// recordable is an answer that Records can write.
type recordable interface{ record() (Record, error) }

func (a answer[T]) record() (r Record, err error) {
	r.Value, err = json.Marshal(a.value)
	if a.err != nil {
		r.Error, r.IsAbsent = a.err.Error(), errors.Is(a.err, netops.ErrNotExist)
		errors.As(a.err, &r.Refusal)
	}
	return r, err
}

func (r *Record) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Refusal != nil:
		return r.Refusal
	case r.IsAbsent:
		return &absent{r.Error}
	}
	return errors.New(r.Error)
}

// absent is a recorded error that wraps netops.ErrNotExist.
type absent struct{ text string }

// Error implements error.
func (e *absent) Error() string { return e.text }

// Unwrap returns netops.ErrNotExist.
func (e *absent) Unwrap() error { return netops.ErrNotExist }

// Records returns what the view knows, by question.
func (v *Namespace) Records() (map[string]Record, error) {
	all := map[string]Record{}
	for question, known := range v.facts {
		r, isUnused := known.(Record)
		if isUnused {
			all[question] = r
			continue
		}
		r, err := known.(recordable).record()
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", question, err)
		}
		all[question] = r
	}
	return all, nil
}

// Recorded returns a view that knows records, and nothing else.
func Recorded(records map[string]Record) *Host {
	h := &Host{Namespace: Namespace{Name: HostName, facts: map[string]any{}}}
	for question, r := range records {
		h.facts[question] = r
	}
	return h
}
