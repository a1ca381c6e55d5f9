package metadata

import (
	"errors"
	"time"
)

var (
	// ErrUnavailable: the cloud did not answer, or asked to come back later; see
	// RetryAfter.
	ErrUnavailable = errors.New("the cloud's metadata is unavailable")
	// ErrRefused: the cloud answers, but not us (401, 403).
	ErrRefused = errors.New("the cloud's metadata is refused")
	// ErrNoAddresses: a good reply shows no address for pods, or the cloud cannot show any.
	ErrNoAddresses = errors.New("the cloud shows no addresses for pods")
	// ErrInvalid: a reply that cannot be understood.
	ErrInvalid = errors.New("invalid reply")
)

// laterError is ErrUnavailable with the time that the cloud wants to be left alone.
type laterError struct {
	err   error
	after time.Duration
	// status is what was answered; 0 when nothing was.
	status int
}

func (e *laterError) Error() string { return ErrUnavailable.Error() + ": " + e.err.Error() }

func (e *laterError) Is(target error) bool { return target == ErrUnavailable }

func (e *laterError) Unwrap() error { return e.err }

// RetryAfter is how long the cloud asked to be left alone; 0 when it did not.
func RetryAfter(err error) time.Duration {
	var later *laterError
	if errors.As(err, &later) {
		return later.after
	}
	return 0
}
