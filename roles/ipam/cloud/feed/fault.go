package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/ipam/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

// kinds are the errors of providers by the names that they are recorded under.
func kinds() map[string]error {
	return map[string]error{
		"unavailable": metadata.ErrUnavailable, "refused": metadata.ErrRefused,
		"no addresses": metadata.ErrNoAddresses, "invalid": metadata.ErrInvalid,
	}
}

func kindOf(err error) string {
	for name, kind := range kinds() {
		if errors.Is(err, kind) {
			return name
		}
	}
	return "unavailable"
}

// recordedError is the error of the process that asked, for the others.
type recordedError struct {
	text string
	kind error
}

func (e *recordedError) Error() string { return e.text }

func (e *recordedError) Is(target error) bool { return target == e.kind }

// answer is the source, or the error that it has no addresses for.
func (q *question) answer(s *store.CloudSource) (*store.CloudSource, error) {
	if usable(s.NICs) {
		return s, nil
	}
	if s.Fault == "" {
		return nil, fmt.Errorf("%w: %s: asked at %s, and no answer since", roles.ErrTryAgain, q.name, s.Asked.Format(time.TimeOnly))
	}
	kind := roles.ErrTryAgain
	if s.FaultKind == "no addresses" {
		kind = roles.ErrExhausted
	}
	return nil, fmt.Errorf("%w: %w", kind, &recordedError{text: s.Fault, kind: kinds()[s.FaultKind]})
}
