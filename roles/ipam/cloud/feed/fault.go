package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/store"
)

// kinds returns the providers' errors by the names under which they are recorded.
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

// recordedError is an error that another process recorded.
type recordedError struct {
	text string
	kind error
}

func (e *recordedError) Error() string { return e.text }

func (e *recordedError) Is(target error) bool { return target == e.kind }

// answer returns the source, or the reason why it has no addresses.
func (q *query) answer(s *store.CloudSource) (*store.CloudSource, error) {
	if usable(s.NICs) {
		return s, nil
	}
	if s.Fault == "" {
		return nil, fmt.Errorf("%w: %s: queried at %s, and no reply since", roles.ErrTryAgain, q.name, s.Asked.Format(time.TimeOnly))
	}
	kind := roles.ErrTryAgain
	if s.FaultKind == "no addresses" {
		kind = roles.ErrExhausted
	}
	return nil, fmt.Errorf("%w: %w", kind, &recordedError{text: s.Fault, kind: kinds()[s.FaultKind]})
}
