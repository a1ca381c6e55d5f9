package metadata

import (
	"errors"
	"time"
)

var (
	// ErrUnavailable means that the cloud did not reply or requested a retry later. See RetryAfter.
	ErrUnavailable = errors.New("the cloud's metadata is unavailable")
	// ErrRefused means that the cloud rejected the request (401, 403).
	ErrRefused = errors.New("the cloud's metadata is refused")
	// ErrNoAddresses means that a valid reply has no address for pods, or that the cloud cannot
	// provide any.
	ErrNoAddresses = errors.New("the cloud shows no addresses for pods")
	// ErrInvalid means that a reply cannot be parsed.
	ErrInvalid = errors.New("invalid reply")
)

// laterError is ErrUnavailable with the cloud's Retry-After.
type laterError struct {
	err   error
	after time.Duration
	// status is the HTTP status, or 0 without a reply.
	status int
}

func (e *laterError) Error() string { return ErrUnavailable.Error() + ": " + e.err.Error() }

func (e *laterError) Is(target error) bool { return target == ErrUnavailable }

func (e *laterError) Unwrap() error { return e.err }

// RetryAfter returns the cloud's Retry-After, or 0.
func RetryAfter(err error) time.Duration {
	var later *laterError
	if errors.As(err, &later) {
		return later.after
	}
	return 0
}
